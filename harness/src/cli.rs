//! The command line as typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ds4_engine::bytes::parse_size;
use ds4_engine::selection::SelectionFlags;

const EXAMPLES: &str = "\
Examples:
  ds4 check                                     prove the allocator on simulated GPUs, a few seconds
  ds4 replay trace.jsonl.gz --gpu-vram 8,8      run a recorded trace on two 8 GiB GPUs
  ds4 fit snapshot.pickle                       the least memory that a recorded run needs
  ds4 plan --model model.gguf --gpu-vram 24,24  does this model fit, and where does each layer go
  ds4 --gpu-placement=0,1 --tensor-size=64M train

Devices are simulated unless --backend names a real one. Exit codes: 0 ok, 1 a check failed or a
request was refused, 2 usage, 3 regression, 4 nothing done or no device, 70 internal error,
75 busy, 124 deadline, 130 interrupted.";

/// Places device memory on the GPUs you allow, refuses honestly and recovers: prove it, replay
/// real traces, plan models.
#[derive(Debug, Parser)]
#[command(name = "ds4", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    /// What machine to run on.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The size of each tensor, for train, prefill and decode; also after the command.
    #[arg(long, value_parser = size, value_name = "SIZE", hide = true)]
    pub tensor_size: Option<u64>,
    /// How to print the result: text, json, or junit (check only).
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    #[arg(hide_possible_values = true)]
    pub format: Format,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object with "schema": 1.
    Json,
    /// JUnit XML (check only).
    Junit,
}

/// The flags that say which devices there are and which may be used.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Devices")]
pub struct MachineArgs {
    /// Which devices: sim, cuda or hip, in any case.
    #[arg(long, global = true, env = "DS4_BACKEND", hide_env_values = true)]
    #[arg(value_name = "NAME")]
    pub backend: Option<String>,
    /// A simulated machine: 1x24g, 2xh200, 8xh200, 8x24g-mixed, 4x24g-bare, or a TOML file.
    #[arg(long, global = true, value_name = "NAME|FILE")]
    pub topology: Option<String>,
    /// Devices by the driver's number, in the order in which they become gpu0, gpu1, ...
    #[arg(long, global = true, value_name = "N,N,...", visible_alias = "gpu")]
    pub gpu_devices: Option<String>,
    /// Memory per device: 24,24 (GiB), 512M,1G, or auto.
    #[arg(long, global = true, value_name = "SIZE,...")]
    pub gpu_vram: Option<String>,
    /// Memory per device to leave alone: one size for all, or one each.
    #[arg(long, global = true, value_name = "SIZE,...")]
    pub gpu_reserve: Option<String>,
    /// Devices that may hold the memory: 0,1 stands for gpu0 and gpu1.
    #[arg(long, global = true, value_name = "N,N,...")]
    pub gpu_placement: Option<String>,
    /// Devices that are never used.
    #[arg(long, global = true, value_name = "N,N,...")]
    pub gpu_exclude: Option<String>,
    /// Refuse hints of which no device exists, instead of taking the least loaded one.
    #[arg(long, global = true)]
    pub strict_hints: bool,
    /// A plan of faults for the simulated devices (sim/FAULTS.md describes the JSON).
    #[arg(long, global = true, value_name = "PLAN.json")]
    pub faults: Option<PathBuf>,
}

impl MachineArgs {
    /// The flags that select devices, for the one parser of them.
    #[must_use]
    pub fn selection_flags(&self) -> SelectionFlags<'_> {
        SelectionFlags {
            gpu: None,
            gpu_devices: self.gpu_devices.as_deref(),
            gpu_vram: self.gpu_vram.as_deref(),
            gpu_reserve: self.gpu_reserve.as_deref(),
            gpu_placement: self.gpu_placement.as_deref(),
            gpu_exclude: self.gpu_exclude.as_deref(),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List devices, their memory and how they reach each other.
    #[command(after_help = "Example: ds4 devices --topology 8x24g-mixed --save my-host.toml")]
    Devices(DevicesArgs),
    /// Prove placement, refusal and recovery with checks and random campaigns.
    #[command(after_help = "\
Examples:
  ds4 check
  ds4 check --suite refusal,recovery --topology 8x24g-mixed
  ds4 check --seed 7 --cases 2000 --format junit > check.xml")]
    Check(CheckArgs),
    /// Run a recorded trace: PyTorch snapshot, RMM log, minimalloc, our JSONL; gzip as is.
    #[command(after_help = "\
Examples:
  ds4 replay golden/traces/two_gpu_pipeline.jsonl.gz
  ds4 replay snapshot.pickle --gpu-vram 4 --format json
  ds4 replay trace.jsonl --gpu-vram 1,1 --faults plan.json
  ds4 replay trace.jsonl --record out/    writes JSONL, RMM CSV and a PyTorch snapshot")]
    Replay(ReplayArgs),
    /// Find the least memory with which a trace replays without a refusal.
    #[command(after_help = "Example: ds4 fit golden/traces/resnet_var.pickle.gz")]
    Fit(FitArgs),
    /// Say whether a model fits and which layers go where; reads the file's header only.
    #[command(after_help = "\
Examples:
  ds4 plan --model model.gguf --gpu-vram 24,24
  ds4 plan --model model.gguf --gpu-vram 24,12 --context 32768 --kv-type q8_0 --gpu-reserve 1G")]
    Plan(PlanArgs),
    /// Allocate like a training step: weights stay, activations come and go, gradients are freed.
    #[command(after_help = "Example: ds4 --gpu-placement=0,1 --tensor-size=64M train")]
    Train(WorkloadArgs),
    /// Allocate like prompt processing: weights stay, activations of each chunk come and go.
    #[command(after_help = "Example: ds4 prefill --tensor-size 32M --gpu-exclude=2")]
    Prefill(WorkloadArgs),
    /// Allocate like token generation: the cache of each layer grows and moves.
    #[command(after_help = "Example: ds4 decode --tensor-size 16M --steps 32")]
    Decode(WorkloadArgs),
    /// Print where everything lies in a rank's slab of a tensor-parallel run, and its hash.
    #[command(after_help = "\
Examples:
  ds4 slab --n-layer 43 --n-embd 4096
  ds4 slab --n-layer 61 --n-embd 7168 --layout ds4 --format json")]
    Slab(SlabArgs),
    /// Write a new key for the ranks of a tensor-parallel run, readable by its owner alone.
    #[command(after_help = "Example: ds4 keygen -o tp.key")]
    Keygen(KeygenArgs),
    /// Measure, with other allocators on the same operations in the same run.
    #[command(subcommand, after_help = "Example: ds4 bench alloc --quick")]
    Bench(BenchCommand),
}

/// `ds4 devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Write the machine as a topology file that --topology reads.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
}

/// `ds4 check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Suites: placement, refusal, recovery, determinism, oom-loop, faults; all if absent.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub suite: Vec<String>,
    /// One check by name.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// The seed of all random campaigns.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How many random histories each randomised check runs; 256 if absent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub cases: Option<u32>,
    /// Run the recorded operations of a failed check again, and nothing else.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["suite", "only", "cases"])]
    pub replay: Option<PathBuf>,
}

/// `ds4 replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The trace.
    pub trace: PathBuf,
    /// Write what happened into this new directory: JSONL, RMM CSV, PyTorch snapshot.
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
}

/// `ds4 fit`.
#[derive(Debug, Args)]
pub struct FitArgs {
    /// The trace.
    pub trace: PathBuf,
}

/// `ds4 plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The GGUF file; of a split model, any part.
    #[arg(long, value_name = "FILE.gguf")]
    pub model: PathBuf,
    /// Tokens of context to make room for; the model's own maximum if absent.
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u64>,
    /// How the cache stores its numbers: f32, f16 or q8_0.
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    pub kv_type: String,
}

/// `ds4 train`, `prefill` and `decode`.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// The size of each tensor: 64M, 1G; 64M if absent.
    #[arg(long, id = "own_tensor_size", value_parser = size, value_name = "SIZE")]
    pub tensor_size: Option<u64>,
    /// Layers of the model.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub layers: u32,
    /// Training steps, prompt chunks or tokens.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,
}

/// `ds4 slab`.
#[derive(Debug, Args)]
pub struct SlabArgs {
    /// Layers of the model.
    #[arg(long, value_name = "L")]
    pub n_layer: u32,
    /// Numbers in a hidden vector.
    #[arg(long, value_name = "E")]
    pub n_embd: u32,
    /// Ranks of the group, from 2 to 32.
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub ranks: u32,
    /// How regions are placed: aligned (every region and vector on 256 bytes) or ds4 (packed).
    #[arg(long, value_enum, default_value_t = SlabKind::Aligned, hide_possible_values = true)]
    pub layout: SlabKind,
}

/// A layout by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SlabKind {
    /// Packed, as ds4 does it.
    Ds4,
    /// Every region and vector on 256 bytes.
    Aligned,
}

/// `ds4 keygen`.
#[derive(Debug, Args)]
pub struct KeygenArgs {
    /// The new file; one that exists is never overwritten.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
}

/// `ds4 bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Allocation and free, by mask, size and number of live blocks.
    #[command(after_help = "Example: ds4 bench alloc --quick --only mask")]
    Alloc(BenchArgs),
}

/// `ds4 bench alloc`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Runs of each row; the row keeps the best.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Only rows whose bench has this in its name.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Seconds instead of minutes: fewer operations, no more than 10 000 live blocks.
    #[arg(long)]
    pub quick: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("the size is 0; write at least 1 byte, for example 64M".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}
