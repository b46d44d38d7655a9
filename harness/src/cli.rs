//! The command line as typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use ds4_engine::bytes::parse_size;
use ds4_engine::selection::SelectionFlags;

const EXAMPLES: &str = "\
Examples:
  ds4 check                                     prove the allocator on simulated GPUs, a few seconds
  ds4 validate --backend cuda --level 1         is the hardware healthy: memory, paths, speed
  ds4 replay trace.jsonl.gz --gpu-vram 8,8      run a recorded trace on two 8 GiB GPUs
  ds4 fit snapshot.pickle                       the least memory that a recorded run needs
  ds4 plan --model model.gguf --gpu-vram 24,24  does this model fit, and where does each layer go
  ds4 --gpu-placement=0,1 --tensor-size=64M train

Two ranks that run one model, on two hosts (ds4 keygen -o tp.key, the same file on both):
  ds4 --tensor-parallel --role leader --listen 0.0.0.0 12345 --model M.gguf --key-file tp.key
  ds4 --tensor-parallel --role worker --coordinator HOST 12345 --model M.gguf --key-file tp.key

As many as a launcher starts, each on its own GPU, summing by NCCL (also with srun or mpirun):
  torchrun --no-python --nproc-per-node 8 ds4 --tensor-parallel --role auto --backend cuda \
    --transport nccl --model M.gguf

Devices are simulated unless --backend names a real one. Exit codes: 0 ok, 1 a check failed or a
request was refused, 2 usage, 3 regression, 4 nothing done or no device, 70 internal error,
75 busy, 124 deadline, 130 interrupted.";

const VALIDATE_HELP: &str = "\
Examples:
  ds4 validate --backend cuda                       a look, seconds, 16 MiB a device at most
  ds4 validate --backend cuda --level 1             nine tenths of the memory, every path
  ds4 validate --backend cuda --level 2 --for 600   all devices at work for ten minutes
  ds4 validate --backend cuda --level 1 --expect rack7.toml --format junit > health.xml

What figures are held against: --expect, else what is shipped for the device's name, else like
devices of this machine, else nothing (skip). A file of expectations:
  device = \"NVIDIA H200\"         # the driver's name; all devices if absent
  [[expect]]
  figure = \"peer-copy\"           # host-to-device, device-to-host, host-bounce, device-copy,
                                 # memory, nvlink, pcie-generation, pcie-width, devices
  at_least = 350_000_000_000     # bytes per second, bytes, or a number of
  otherwise = \"fail\"             # or warn
  source = \"measured at delivery\"

Exit codes: 0 all pass or warn, 1 a check failed or could not be made, 4 nothing or no memory
measured, or no device, 75 a device is in use by others, 124 deadline, 130 interrupted; the last
three leave what was found until then.";

const SCALING_HELP: &str = "\
Examples:
  ds4 scaling                                    86 gates of 16 KiB over NVLink, 2 to 1024 ranks
  ds4 scaling --link tcp --bytes 64K --ranks 3,5,8 --algorithm ring
  ds4 bench gate --format json > gate.json
  ds4 scaling --link gate.json --subject tcp     from times of this machine

Links: nvlink (gates in a graph), nvlink-launched, nvlink-kernel, tcp, shm: measured; rdma:
published by others. The sources are printed with every figure.";

/// Places device memory on the GPUs you allow, refuses honestly and recovers: prove it, replay
/// real traces, plan models.
#[derive(Debug, Parser)]
#[command(name = "ds4", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Cli {
    /// What machine to run on.
    #[command(flatten)]
    pub machine: MachineArgs,
    /// The size of each tensor, for train, prefill and decode; also after the command.
    #[arg(long, value_parser = size, allow_hyphen_values = true, value_name = "SIZE", hide = true)]
    pub tensor_size: Option<u64>,
    /// How to print the result: text, json, or junit (check, validate).
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    #[arg(hide_possible_values = true)]
    pub format: Format,
    /// One rank of a tensor-parallel run.
    #[command(flatten)]
    pub rank: RankArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// `ds4 --tensor-parallel`: the flags of one rank.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Tensor parallelism (no command)")]
pub struct RankArgs {
    /// Be one rank of a run: exchange every gate of every token, verified.
    #[arg(long)]
    pub tensor_parallel: bool,
    /// leader (or coordinator), worker, or auto: as torchrun, srun or mpirun says.
    #[arg(long, value_name = "ROLE")]
    pub role: Option<String>,
    /// Where to wait for the other ranks.
    #[arg(long, num_args = 2, value_names = ["HOST", "PORT"])]
    pub listen: Option<Vec<String>>,
    /// Where the leader listens; with --role auto for all ranks, if the launcher does not say it.
    #[arg(long, num_args = 2, value_names = ["HOST", "PORT"])]
    pub coordinator: Option<Vec<String>>,
    /// How gates travel: auto, tcp, shm, rdma, nvlink, or nccl, which is NCCL with --backend cuda and
    /// RCCL with hip, and never chosen by auto.
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// What the ranks speak: native, or ds4-v7, with which a ds4 rank can be the peer; native if absent.
    #[arg(long, value_name = "NAME")]
    pub protocol: Option<String>,
    /// The model whose gates are exchanged; only its header and a hash of its content are used.
    #[arg(long, value_name = "FILE.gguf", conflicts_with_all = ["n_layer", "n_embd"])]
    pub model: Option<PathBuf>,
    /// Layers, instead of a model.
    #[arg(long, value_name = "L", requires = "n_embd")]
    pub n_layer: Option<u32>,
    /// Numbers in a hidden vector, instead of a model.
    #[arg(long, value_name = "E", requires = "n_layer")]
    pub n_embd: Option<u32>,
    /// Tokens to run; the leader decides; 64 if absent.
    #[arg(long, value_name = "N")]
    pub tokens: Option<u64>,
    /// The file with the group's key, as ds4 keygen writes it; DS4_TP_KEY holds the key itself.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Run without a key: whoever reaches the port can take part.
    #[arg(long, conflicts_with = "key_file")]
    pub insecure: bool,
    /// Encrypt what passes by TCP; on all ranks or none, and with a key.
    #[arg(long, conflicts_with = "insecure")]
    pub encrypt: bool,
    /// The device of --transport rdma; ds4 devices --rdma lists them.
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// The address of that device's port, by its index in the port's table.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=0x7fff_ffff))]
    pub rdma_gid_index: Option<u32>,
    /// Compare a hash of the state every N tokens; 64 if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub debug_hash: Option<u32>,
    /// Ranks of the group; 2 if absent.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=32))]
    pub ranks: Option<u32>,
    /// The worker's rank; 1 if absent.
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=31))]
    pub rank: Option<u32>,
    /// Where a lower worker listens, if not where the leader sees it; once for each.
    #[arg(long, num_args = 3, value_names = ["RANK", "HOST", "PORT"])]
    #[arg(action = clap::ArgAction::Append)]
    pub peer: Vec<String>,
    /// How to wait: adaptive, spin or block; if absent, adaptive where there is a core for each rank.
    #[arg(long, value_name = "HOW")]
    pub wait: Option<String>,
    /// How long to wait for the other ranks; 60 if absent.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub connect_timeout: Option<u64>,
    /// How long a gate may take, and a third of how long a peer may be silent; 5 if absent, and 60
    /// for the first gate.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub gate_timeout: Option<u64>,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object with "schema": 1.
    Json,
    /// JUnit XML (check, validate).
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
    /// A simulated machine: 1x24g, 2xh200, 8xh200, 8x24g-mixed, 4x24g-bare, or a TOML file. If
    /// absent: 8x24g-mixed for check, train, prefill, decode; else 2xh200, 8xh200 for large traces.
    #[arg(long, global = true, value_name = "NAME|FILE")]
    pub topology: Option<String>,
    /// Devices by the driver's number, in the order in which they become gpu0, gpu1, ...
    #[arg(long, global = true, value_name = "N,N,...", visible_alias = "gpu")]
    #[arg(allow_hyphen_values = true)]
    pub gpu_devices: Option<String>,
    /// Memory per device: 24,24 (GiB), 512M,1G, or auto.
    #[arg(long, global = true, value_name = "SIZE,...")]
    #[arg(allow_hyphen_values = true)]
    pub gpu_vram: Option<String>,
    /// Memory per device to leave alone: one size for all, or one each.
    #[arg(long, global = true, value_name = "SIZE,...")]
    #[arg(allow_hyphen_values = true)]
    pub gpu_reserve: Option<String>,
    /// Devices that may hold the memory: 0,1 stands for gpu0 and gpu1.
    #[arg(long, global = true, value_name = "N,N,...")]
    #[arg(allow_hyphen_values = true)]
    pub gpu_placement: Option<String>,
    /// Devices that are never used.
    #[arg(long, global = true, value_name = "N,N,...")]
    #[arg(allow_hyphen_values = true)]
    pub gpu_exclude: Option<String>,
    /// Refuse hints of which no device exists, instead of taking the least loaded one.
    #[arg(long, global = true)]
    pub strict_hints: bool,
    /// A plan of faults that ds4 injects (sim/FAULTS.md describes the JSON).
    #[arg(long, global = true, value_name = "PLAN.json")]
    pub faults: Option<PathBuf>,
}

impl MachineArgs {
    /// The flags that select devices, for the one parser of them.
    #[must_use]
    pub fn selection_flags(&self) -> SelectionFlags<'_> {
        SelectionFlags {
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
    #[command(after_help = "\
Examples:
  ds4 devices --topology 8x24g-mixed --save my-host.toml
  ds4 devices --rdma          network devices with direct memory access, and what ranks would use")]
    Devices(DevicesArgs),
    /// Prove placement, refusal and recovery with checks and random campaigns.
    #[command(after_help = "\
Examples:
  ds4 check
  ds4 check --suite refusal,recovery --topology 8x24g-mixed
  ds4 check --seed 7 --cases 2000 --format junit > check.xml")]
    Check(CheckArgs),
    /// Say whether devices are healthy: what was done, measured and expected.
    #[command(after_help = VALIDATE_HELP)]
    Validate(ValidateArgs),
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
    /// Say what a token's gates cost on 2 to 1024 ranks, by a model from times of two ranks.
    #[command(after_help = SCALING_HELP)]
    Scaling(ScalingArgs),
    /// Write a new key for the ranks of a tensor-parallel run, readable by its owner alone.
    #[command(after_help = "Example: ds4 keygen -o tp.key")]
    Keygen(KeygenArgs),
    /// Measure, with other allocators on the same operations in the same run.
    #[command(subcommand, after_help = "Example: ds4 bench alloc --quick")]
    Bench(BenchCommand),
    /// Run any program of the CUDA driver API on simulated GPUs.
    #[command(after_help = "\
Examples:
  ds4 fake-cuda --gpus 24G,24G -- ds4 check --backend cuda
  ds4 fake-cuda --topology 8x24g-mixed --faults plan.json --ledger -- ./my-test
  ds4 fake-cuda --gpus 1G --log calls.txt -- python ci/clients/numba_arrays.py
  ds4 fake-cuda --gpus 1G,1G --nccl -- torchrun --no-python --nproc-per-node 2 \
    ds4 --tensor-parallel --role auto --backend cuda --transport nccl --n-layer 2 --n-embd 64

Programs of the CUDA runtime (PyTorch, anything that nvcc linked) do not accept the library. The
exit code is the program's, 128 and the signal for one that was killed.")]
    FakeCuda(FakeArgs),
    /// Run any program of the HIP runtime on simulated GPUs.
    #[command(after_help = "Example: ds4 fake-hip --gpus 192G,192G -- ./my-hip-test")]
    FakeHip(FakeArgs),
}

/// `ds4 devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Write the machine as a topology file that --topology reads.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// List RDMA devices instead: ports, states, tables of addresses, and which would be used.
    #[arg(long, conflicts_with = "save")]
    pub rdma: bool,
}

/// `ds4 check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Suites: placement, refusal, recovery, determinism, oom-loop, faults, kernels, slab, link; all
    /// if absent.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub suite: Vec<String>,
    /// One check by name.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// The seed of all random campaigns.
    #[arg(long, default_value_t = 1, value_parser = within::<u64, 0, { u64::MAX }>, allow_hyphen_values = true)]
    pub seed: u64,
    /// How many random histories each randomised check runs; 256 if absent.
    #[arg(long, value_parser = within::<u32, 1, { u32::MAX as u64 }>, allow_hyphen_values = true)]
    pub cases: Option<u32>,
    /// Run the recorded operations of a failed check again, and nothing else.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["suite", "only", "cases", "seed"])]
    pub replay: Option<PathBuf>,
}

/// `ds4 validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// 0 looks (seconds), 1 tests memory and paths (a minute), 2 soaks (--for).
    #[arg(long, default_value_t = 0, value_parser = within::<u8, 0, 2>, allow_hyphen_values = true)]
    pub level: u8,
    /// How long level 2 keeps all devices at work; 120 if absent.
    #[arg(long = "for", value_name = "SECONDS", value_parser = within::<u64, 1, 604_800>, allow_hyphen_values = true)]
    pub seconds: Option<u64>,
    /// End with what is there after so many seconds; 30, 180, or 180 more than --for if absent.
    #[arg(long, value_name = "SECONDS", value_parser = within::<u64, 1, 700_000>, allow_hyphen_values = true)]
    pub deadline: Option<u64>,
    /// What figures must be, in TOML.
    #[arg(long, value_name = "FILE.toml")]
    pub expect: Option<PathBuf>,
    /// Only these checks, by name.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub only: Vec<String>,
    /// The most memory to take of each device; of simulated ones 256M if absent.
    #[arg(long, value_parser = size, allow_hyphen_values = true, value_name = "SIZE")]
    pub max_bytes: Option<u64>,
    /// Load devices of which others hold more than a tenth.
    #[arg(long)]
    pub allow_busy: bool,
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
    /// Tokens of context to make room for, such as 32768 or 32k; the model's own maximum if absent.
    #[arg(long, value_parser = tokens, allow_hyphen_values = true, value_name = "TOKENS")]
    pub context: Option<u64>,
    /// How the cache stores its numbers: f32, f16 or q8_0.
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    pub kv_type: String,
}

/// `ds4 train`, `prefill` and `decode`.
#[derive(Debug, Args)]
pub struct WorkloadArgs {
    /// The size of each tensor: 64M, 1G; 64M if absent.
    #[arg(long, id = "own_tensor_size", value_parser = size, allow_hyphen_values = true, value_name = "SIZE")]
    pub tensor_size: Option<u64>,
    /// Layers of the model.
    #[arg(long, default_value_t = 8, value_parser = within::<u32, 1, 10_000>, allow_hyphen_values = true)]
    pub layers: u32,
    /// Training steps, prompt chunks or tokens.
    #[arg(long, default_value_t = 4, value_parser = within::<u32, 1, 100_000>, allow_hyphen_values = true)]
    pub steps: u32,
}

/// `ds4 slab`.
#[derive(Debug, Args)]
pub struct SlabArgs {
    /// Layers of the model.
    #[arg(long, value_name = "L", value_parser = within::<u32, 0, { u32::MAX as u64 }>, allow_hyphen_values = true)]
    pub n_layer: u32,
    /// Numbers in a hidden vector.
    #[arg(long, value_name = "E", value_parser = within::<u32, 0, { u32::MAX as u64 }>, allow_hyphen_values = true)]
    pub n_embd: u32,
    /// Ranks of the group, from 2 to 32.
    #[arg(long, default_value_t = 2, value_name = "N")]
    #[arg(value_parser = within::<u32, 0, { u32::MAX as u64 }>, allow_hyphen_values = true)]
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

/// `ds4 scaling`.
#[derive(Debug, Args)]
pub struct ScalingArgs {
    /// nvlink, nvlink-launched, nvlink-kernel, rdma, tcp, shm, or a file of ds4 bench gate --format json.
    #[arg(long, value_name = "NAME|FILE", default_value = "nvlink")]
    pub link: String,
    /// Whose gates, where a file has several.
    #[arg(long, value_name = "NAME")]
    pub subject: Option<String>,
    /// Bytes of the vector that a gate sums, at most 1G.
    #[arg(long, value_parser = size, allow_hyphen_values = true, value_name = "SIZE", default_value = "16K")]
    pub bytes: u64,
    /// Counts of ranks.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "N,...",
        default_value = "2,4,8,16,32,64,128,256,512,1024"
    )]
    #[arg(value_parser = within::<u16, 2, 1024>, allow_hyphen_values = true)]
    pub ranks: Vec<u16>,
    /// Gates of a token.
    #[arg(long, value_name = "N", default_value_t = 86, value_parser = within::<u32, 1, 1_000_000>, allow_hyphen_values = true)]
    pub gates: u32,
    /// all, one-shot, ring or tree.
    #[arg(long, value_enum, default_value_t = ScalingAlgorithm::All, hide_possible_values = true)]
    pub algorithm: ScalingAlgorithm,
}

/// An algorithm by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScalingAlgorithm {
    /// The three beside each other.
    All,
    /// Everyone sends to everyone.
    OneShot,
    /// Pieces go round a ring.
    Ring,
    /// Up a binomial tree and down again.
    Tree,
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
    /// Paths between two ranks of this host, 4 B to 64 MiB, one way and both ways at once; sockperf,
    /// UCX and iperf3 beside, where installed.
    #[command(after_help = "Example: ds4 bench link --quick --only 16KiB")]
    Link(BenchArgs),
    /// Key exchanges and gates between two ranks of this host, beside a bare exchange of the same
    /// bytes and the same tools; with --backend cuda or hip gates between two devices, beside copies
    /// of the driver.
    #[command(
        after_help = "Examples:\n  ds4 bench gate --quick --format json\n  ds4 bench gate --backend cuda --gpu-devices 0,1"
    )]
    Gate(BenchArgs),
    /// Sums over three, four and eight ranks of this host, in one shot beside the ring.
    #[command(after_help = "Example: ds4 bench sum --quick --only 256KiB")]
    Sum(BenchArgs),
}

/// `ds4 bench alloc`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Runs of each row; the row keeps the best.
    #[arg(long, default_value_t = 5, value_parser = within::<u32, 1, 1000>, allow_hyphen_values = true)]
    pub runs: u32,
    /// Only rows whose bench has this in its name.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Seconds instead of minutes: fewer operations, no more than 10 000 live blocks.
    #[arg(long)]
    pub quick: bool,
}

/// `ds4 fake-cuda` and `ds4 fake-hip`.
#[derive(Debug, Args)]
pub struct FakeArgs {
    /// Memory of each GPU: 24G,24G; without it and --topology, two H200.
    #[arg(long, value_name = "SIZE,...")]
    pub gpus: Option<String>,
    /// The version that the driver gives: 12040 for CUDA 12.4, 60241134 for HIP 6.2.41134.
    #[arg(long, value_name = "NUMBER", value_parser = within::<u32, 0, { u32::MAX as u64 }>, allow_hyphen_values = true)]
    pub driver_version: Option<u32>,
    /// Add a line for each call to this file: its name and its code.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// List at the program's end what was leaked, misused or raced for.
    #[arg(long)]
    pub ledger: bool,
    /// Also put a stand-in for NCCL and RCCL in place, which sums between the processes of this host.
    #[arg(long)]
    pub nccl: bool,
    /// The program and its words.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// A count of tokens, in thousands of 1024 with a `k`.
fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = plain.then(|| digits.parse::<u64>().ok()?.checked_mul(unit));
    count.flatten().ok_or_else(|| {
        "write the number of tokens in digits, such as 32768, or in 1024 with a k, such as 32k"
            .to_owned()
    })
}

/// A whole number in digits, from `LEAST` to `MOST`.
fn within<T: TryFrom<u64>, const LEAST: u64, const MOST: u64>(text: &str) -> Result<T, String> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| text.parse::<u64>().ok()).flatten();
    number
        .filter(|number| (LEAST..=MOST).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("write a whole number from {LEAST} to {MOST}"))
}

fn size(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Ok(0) => Err("the size is 0; write at least 1 byte, for example 64M".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_none_are_told_the_range() {
        let number = within::<u8, 0, 2>;
        assert_eq!((number("0"), number("2")), (Ok(0), Ok(2)));
        for wrong in ["", "-1", "+1", "3", "1.5", "two"] {
            let said = number(wrong).unwrap_err();
            assert_eq!(said, "write a whole number from 0 to 2", "{wrong}");
        }
        assert_eq!(
            within::<u64, 0, { u64::MAX }>("18446744073709551615"),
            Ok(u64::MAX)
        );
    }

    #[test]
    fn tokens_may_be_counted_in_1024_and_everything_else_is_told_how() {
        assert_eq!(tokens("32768"), Ok(32768));
        assert_eq!((tokens("32k"), tokens("1K")), (Ok(32768), Ok(1024)));
        for wrong in [
            "",
            "k",
            "-1",
            "+1",
            "32M",
            "1.5k",
            "1 k",
            "18446744073709551615k",
        ] {
            assert!(tokens(wrong).unwrap_err().contains("32768"), "{wrong}");
        }
    }
}
