//! From the flags of a rank as typed to what it will do, or why not.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ds4_engine::nccl::Library;
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::Schedule;
use ds4_engine::tp::session::{Config, Dialect};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::Deadlines;
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::verbs::{self, SystemVerbs, Wish};
use ds4_engine::transport::{Rdma, Remote, Wait};

use super::auto::{self, Auto};
use super::protocol::{DS4_NOTE, ds4_dialect, ds4_gates, ds4_transports, is_ds4};
use super::run::load_library;
use super::shape::Shape;
use crate::cli::{MachineArgs, RankArgs};
use crate::exit::Exit;
use crate::files::read_short;
use crate::machine::{Flag, Machine, refuse_flags, roomy};
use crate::output::Failure;

/// The environment variable that holds the key itself.
const KEY_VARIABLE: &str = "DS4_TP_KEY";
/// The environment variable that says which queue pairs RDMA uses; for tests.
const QUEUE_PAIRS_VARIABLE: &str = "DS4_RDMA_QUEUE_PAIRS";
/// No more of a key file is read than a key could have.
const KEY_FILE_BYTES_MAX: usize = 4096;
const TOKENS: u64 = 64;
/// The most tokens: what a session's context can count.
const TOKENS_MAX: u64 = 2_000_000_000;
const HASH_EVERY: u32 = 64;
const SECOND_NS: u64 = 1_000_000_000;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: String,
    pub(super) port: u16,
}

/// What a rank will do.
#[derive(Debug)]
pub struct Plan {
    pub(super) config: Config,
    pub(super) shape: Shape,
    pub(super) key: Option<Key>,
    pub(super) insecure: bool,
    pub(super) encrypt: bool,
    pub(super) listen: Option<Place>,
    pub(super) remotes: Vec<Remote>,
    pub(super) wait: Wait,
    pub(super) rdma: Rdma,
    pub(super) tokens: u64,
    pub(super) hash_every: u64,
    pub(super) machine: Machine,
    /// What makes the sums, if not this program.
    pub(super) library: Option<Arc<Library>>,
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Judges the flags; what does not fit together is refused in words. `stop` ends the wait for a
    /// key that comes by a pipe.
    ///
    /// # Errors
    /// [`Failure`] of the command line, or of a file or device that it names.
    pub fn resolve(
        args: &RankArgs,
        machine: &MachineArgs,
        stop: &AtomicBool,
    ) -> Result<Self, Failure> {
        let auto = auto::resolve(args, machine)?;
        let launched = auto.is_some();
        let who = match auto {
            Some(auto) => auto,
            None => by_hand(args, machine)?,
        };
        let (rank, ranks, machine) = (who.rank, who.ranks, &who.machine);
        let leads = rank == 0;
        let transports = transports(args)?;
        backend(machine)?;
        refuse_flags(machine, &[Flag::Faults], "--tensor-parallel")?;
        let (key, mut notes) = key(args, stop)?;
        if launched {
            notes.push(who.note);
        }
        let ds4 = is_ds4(args, ranks, key.is_some())?;
        if args.encrypt && key.is_none() {
            return Err(Failure::usage(format!(
                "--encrypt needs a key: give --key-file FILE (ds4 keygen -o FILE writes one) or \
                 {KEY_VARIABLE}"
            )));
        }
        let tokens = args.tokens.unwrap_or(TOKENS);
        if !(1..=TOKENS_MAX).contains(&tokens) {
            return Err(Failure::usage(format!(
                "--tokens is {tokens}; give from 1 to {TOKENS_MAX}"
            )));
        }
        if !(leads || launched) && (args.tokens.is_some() || args.debug_hash.is_some()) {
            return Err(Failure::usage(
                "--tokens and --debug-hash are the leader's to say; leave them out on a worker",
            ));
        }
        let shape = shape(args)?;
        let geometry = SlabGeometry {
            n_layer: shape.n_layer,
            n_embd: shape.n_embd,
            ranks,
        };
        let (layout, gates) = if ds4 {
            notes.push(DS4_NOTE.to_owned());
            (SlabLayout::ds4(geometry), ds4_gates(&shape))
        } else {
            let every = Schedule::every_gate(shape.n_layer);
            (SlabLayout::aligned(geometry), every.map(|it| (it, true)))
        };
        let (schedule, split_logits) = gates.map_err(Failure::usage)?;
        if ds4 && split_logits && shape.n_vocab % 2 != 0 {
            return Err(Failure::usage(format!(
                "--protocol ds4-v7 halves the vocabulary, and {} is odd",
                shape.n_vocab
            )));
        }
        let identity = Identity {
            model: shape.content,
            n_vocab: shape.n_vocab,
            quant_bits: if ds4 { shape.expert_bits } else { 0 },
            switches: 0,
            layout: layout.map_err(Failure::usage)?,
            schedule,
            split_logits,
            payload_crc: !ds4,
        };
        let context = u32::try_from(tokens).unwrap_or(u32::MAX);
        let resolved = Machine::resolve(machine, roomy(1))?;
        let library = transports
            .has(Transport::Nccl)
            .then(|| load_library(&resolved));
        let library = library.transpose()?;
        let mut deadlines = Deadlines::default();
        if let Some(seconds) = args.connect_timeout {
            deadlines.connect_ns = seconds * SECOND_NS;
        }
        if library.is_some() {
            // Libraries take seconds to find their ways between many devices.
            deadlines.hello_ns = deadlines.connect_ns;
        }
        if let Some(seconds) = args.gate_timeout {
            deadlines.gate_ns = seconds * SECOND_NS;
            deadlines.first_gate_ns = seconds * SECOND_NS;
            deadlines.idle_ns = 3 * seconds * SECOND_NS;
        }
        Ok(Self {
            config: Config {
                rank,
                identity,
                // A worker of ds4's own protocol says none.
                context: if ds4 && !leads { 0 } else { context },
                transports: if ds4 { ds4_transports() } else { transports },
                deadlines,
                dialect: if ds4 {
                    ds4_dialect(&shape)
                } else {
                    Dialect::Native
                },
            },
            shape,
            key,
            insecure: args.insecure,
            encrypt: args.encrypt,
            listen: who.listen,
            remotes: who.remotes,
            wait: wait(args, ranks)?,
            rdma: rdma(args, transports)?,
            tokens,
            hash_every: u64::from(args.debug_hash.unwrap_or(HASH_EVERY)),
            machine: resolved,
            library,
            notes,
        })
    }
}

/// What the flags say that a launcher would say.
fn by_hand(args: &RankArgs, machine: &MachineArgs) -> Result<Auto, Failure> {
    let leads = leads(args)?;
    let (rank, ranks) = numbers(args, leads)?;
    let listen = args.listen.as_deref().map(|it| place("--listen", it));
    let listen = listen.transpose()?;
    Ok(Auto {
        rank,
        ranks,
        remotes: remotes(args, leads, rank, ranks, listen.is_some())?,
        listen,
        machine: machine.clone(),
        note: String::new(),
    })
}

fn leads(args: &RankArgs) -> Result<bool, Failure> {
    match args.role.as_deref() {
        Some("leader" | "coordinator") => Ok(true),
        Some("worker") => Ok(false),
        Some("none") | None => Err(Failure::usage(
            "--tensor-parallel requires --role leader or --role worker, or --role auto under \
             torchrun, srun or mpirun",
        )),
        Some(other) => Err(Failure::usage(format!(
            "invalid --role value: {other}; use leader (or coordinator), worker or auto"
        ))),
    }
}

fn numbers(args: &RankArgs, leads: bool) -> Result<(u32, u32), Failure> {
    let ranks = args.ranks.unwrap_or(2);
    let rank = if leads { 0 } else { args.rank.unwrap_or(1) };
    if leads && args.rank.is_some() {
        return Err(Failure::usage("the leader is rank 0; leave --rank out"));
    }
    if rank >= ranks {
        return Err(Failure::usage(format!(
            "--rank {rank} is not below --ranks {ranks}"
        )));
    }
    Ok((rank, ranks))
}

/// Where the lower ranks are; refuses what does not belong to the role.
fn remotes(
    args: &RankArgs,
    leads: bool,
    rank: u32,
    ranks: u32,
    listens: bool,
) -> Result<Vec<Remote>, Failure> {
    if leads {
        if !listens {
            return Err(Failure::usage(
                "--role leader --tensor-parallel requires --listen HOST PORT",
            ));
        }
        if args.coordinator.is_some() {
            return Err(Failure::usage("--role leader must not use --coordinator"));
        }
        if !args.peer.is_empty() {
            return Err(Failure::usage("--role leader must not use --peer"));
        }
        return Ok(Vec::new());
    }
    let Some(coordinator) = &args.coordinator else {
        return Err(Failure::usage(
            "--role worker --tensor-parallel requires --coordinator HOST PORT",
        ));
    };
    let highest = rank + 1 == ranks;
    if listens && highest {
        return Err(Failure::usage(
            "--role worker --tensor-parallel must not use --listen: no higher rank connects to it",
        ));
    }
    if !listens && !highest {
        return Err(Failure::usage(format!(
            "rank {rank} of {ranks} requires --listen HOST PORT: higher ranks connect to it"
        )));
    }
    let leader = place("--coordinator", coordinator)?;
    let mut remotes = vec![Remote {
        rank: 0,
        host: leader.host,
        port: leader.port,
    }];
    let (triples, _) = args.peer.as_chunks::<3>();
    for [number, host, port] in triples {
        let lower = number.parse().ok().filter(|it| (1..rank).contains(it));
        let lower = lower.ok_or_else(|| {
            Failure::usage(format!(
                "--peer {number}: name workers of lower rank, from 1 to below {rank}"
            ))
        })?;
        let place = place("--peer", &[host.clone(), port.clone()])?;
        if remotes.iter().any(|it| it.rank == lower) {
            return Err(Failure::usage(format!("--peer {number} is given twice")));
        }
        remotes.push(Remote {
            rank: lower,
            host: place.host,
            port: place.port,
        });
    }
    Ok(remotes)
}

pub(super) fn place(flag: &str, words: &[String]) -> Result<Place, Failure> {
    let [host, port] = words else {
        return Err(Failure::usage(format!("{flag} needs HOST PORT")));
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| port.parse::<u16>().ok()).flatten();
    match number.filter(|port| *port > 0) {
        Some(port) => Ok(Place {
            host: host.clone(),
            port,
        }),
        None => Err(Failure::usage(format!(
            "{flag}: the port is {port}; give a number from 1 to 65535"
        ))),
    }
}

fn transports(args: &RankArgs) -> Result<TransportSet, Failure> {
    let name = args.transport.as_deref().unwrap_or("auto");
    let rdma = args.rdma_device.is_some() || args.rdma_gid_index.is_some();
    let chosen = match name {
        "auto" => TransportSet::of(&[Transport::Rdma, Transport::Shm, Transport::Tcp]),
        "tcp" => TransportSet::of(&[Transport::Tcp]),
        "shm" => TransportSet::of(&[Transport::Shm]),
        "rdma" => TransportSet::of(&[Transport::Rdma]),
        "nccl" => TransportSet::of(&[Transport::Nccl]),
        "nvlink" => {
            return Err(Failure::usage(
                "--transport nvlink: this build has no such path yet; use auto, tcp, shm, rdma or \
                 nccl",
            ));
        }
        other => {
            return Err(Failure::usage(format!(
                "invalid --transport value: {other}; use auto, tcp, shm, rdma, nvlink or nccl"
            )));
        }
    };
    if rdma && !matches!(name, "auto" | "rdma") {
        return Err(Failure::usage(format!(
            "--rdma-device and --rdma-gid-index have no meaning with --transport {name}"
        )));
    }
    Ok(chosen)
}

/// What the rank brings for memory access over the network.
fn rdma(args: &RankArgs, transports: TransportSet) -> Result<Rdma, Failure> {
    if !transports.has(Transport::Rdma) {
        return Ok(Rdma::default());
    }
    let (library, why_none) = match SystemVerbs::load() {
        Ok(verbs) => (
            Some(Arc::new(verbs) as Arc<dyn verbs::Library>),
            String::new(),
        ),
        Err(error) => (None, error.to_string()),
    };
    let unreliable = match std::env::var(QUEUE_PAIRS_VARIABLE).as_deref() {
        Err(_) | Ok("rc") => false,
        Ok("uc") => true,
        Ok(other) => {
            return Err(Failure::usage(format!(
                "{QUEUE_PAIRS_VARIABLE}={other}: give rc, which loses nothing, or uc, which ranks \
                 use only where rc cannot be had"
            )));
        }
    };
    Ok(Rdma {
        library,
        why_none,
        wish: Wish {
            device: args.rdma_device.clone(),
            gid_index: args.rdma_gid_index,
        },
        unreliable,
    })
}

/// Metal is the reference's own backend: say why it is none here.
fn backend(machine: &MachineArgs) -> Result<(), Failure> {
    let metal = machine
        .backend
        .as_deref()
        .is_some_and(|name| name.eq_ignore_ascii_case("metal"));
    if metal {
        return Err(Failure::usage(
            "tensor parallelism runs on sim, cuda and hip; metal is refused, as there is no \
             allocator for Apple's devices here",
        ));
    }
    Ok(())
}

fn wait(args: &RankArgs, ranks: u32) -> Result<Wait, Failure> {
    match args.wait.as_deref() {
        None => Ok(Wait::among(ranks)),
        Some("adaptive") => Ok(Wait::ADAPTIVE),
        Some("spin") => Ok(Wait::SPIN),
        Some("block") => Ok(Wait::BLOCK),
        Some(other) => Err(Failure::usage(format!(
            "invalid --wait value: {other}; use adaptive, spin or block"
        ))),
    }
}

/// The key, and what to say about it.
fn key(args: &RankArgs, stop: &AtomicBool) -> Result<(Option<Key>, Vec<String>), Failure> {
    let mut notes = Vec::new();
    if let Some(path) = &args.key_file {
        let shown = path.display();
        let text = read_short(path, KEY_FILE_BYTES_MAX, stop).map_err(|error| Failure {
            exit: if error.kind() == io::ErrorKind::Interrupted {
                Exit::Interrupted
            } else {
                Exit::Usage
            },
            message: format!("--key-file {shown}: {error}"),
        })?;
        if readable_by_others(path) {
            notes.push(format!(
                "{shown} can be read by others than its owner; chmod 600 it"
            ));
        }
        let key = Key::parse(&text)
            .map_err(|error| Failure::usage(format!("--key-file {shown}: {error}")))?;
        return Ok((Some(key), notes));
    }
    if args.insecure {
        return Ok((None, notes));
    }
    // Set to what is no key, or to nothing, it must not mean that none is wanted.
    let Some(text) = std::env::var_os(KEY_VARIABLE) else {
        return Ok((None, notes));
    };
    let key = Key::parse(&text.to_string_lossy()).map_err(|error| {
        Failure::usage(format!(
            "{KEY_VARIABLE}: {error}; unset it to run without a key, or say --insecure"
        ))
    })?;
    Ok((Some(key), notes))
}

#[cfg(unix)]
fn readable_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn readable_by_others(_path: &Path) -> bool {
    false
}

fn shape(args: &RankArgs) -> Result<Shape, Failure> {
    match (&args.model, args.n_layer, args.n_embd) {
        (Some(path), None, None) => Shape::of_model(path),
        (None, Some(n_layer), Some(n_embd)) => Ok(Shape::bare(n_layer, n_embd)),
        _ => Err(Failure::usage(
            "--tensor-parallel requires --model FILE.gguf, or --n-layer L --n-embd E",
        )),
    }
}

/// Whether addresses need a key: others than this host's processes reach them.
pub(super) fn refuse_open_door(addresses: &[IpAddr], plan: &Plan) -> Result<(), Failure> {
    let public = addresses.iter().find(|it| !it.is_loopback());
    match public {
        Some(address) if plan.key.is_none() && !plan.insecure => Err(Failure::usage(format!(
            "listening on {address} without a key lets everyone who reaches the port take part; \
             give --key-file FILE (ds4 keygen -o FILE writes one), or --insecure"
        ))),
        _ => Ok(()),
    }
}
