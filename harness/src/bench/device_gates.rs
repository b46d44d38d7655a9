//! Gates between two real devices, in one kernel, in a graph and launched one by one, beside copies
//! between the same devices.
//!
//! A time is the host's for a whole batch, divided by the batch's gates. Every batch's sums are
//! compared on both devices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use ds4_engine::alloc::{Allocation, Allocator, AllocatorConfig, Request};
use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::{DriverBackend, Graph};
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};
use ds4_engine::device_gates::{DeviceGateError, DeviceGates};
use ds4_kernels::{Launch, checksum};

use super::links::LinkRow;
use super::{Options, words};
use crate::stopwatch::Stopwatch;

/// Sizes of gates, in bytes: the first is a flag and nothing else.
const SIZES: [u64; 8] = [
    16,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    16 << 20,
    64 << 20,
];
/// The most bytes that all gates of a batch pass, each way.
const BATCH_BYTES: u64 = 8 << 30;
/// Gates of a captured graph.
const GRAPH_GATES: u64 = 100;
/// Layers times gates of a layer of a model with 43 of them, and the size of its gates.
const TOKEN_GATES: u32 = 86;
const TOKEN_BYTES: u64 = 16 << 10;
const DEADLINE: Duration = Duration::from_secs(5);

/// How gates are given to the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    InKernel,
    Graph,
    Launched,
    /// No gates: copies by the driver, both ways at once.
    Copies,
}

impl Method {
    const ALL: [Self; 4] = [Self::InKernel, Self::Graph, Self::Launched, Self::Copies];

    const fn name(self) -> &'static str {
        match self {
            Self::InKernel => "in one kernel",
            Self::Graph => "graph",
            Self::Launched => "launched",
            Self::Copies => "peer copy",
        }
    }

    const fn takes(self, bytes: u64) -> bool {
        match self {
            Self::InKernel => bytes <= ds4_kernels::gate::PACKET_GATE_BYTES,
            Self::Graph | Self::Launched => true,
            Self::Copies => bytes >= 256 << 10,
        }
    }

    /// Gates of a batch.
    fn count(self, bytes: u64, quick: bool) -> u64 {
        let most = match self {
            Self::InKernel => 20_000,
            Self::Graph => 10_000,
            Self::Launched | Self::Copies => 2_000,
        };
        let most = if quick { most / 10 } else { most };
        (BATCH_BYTES / bytes).clamp(20, most).next_multiple_of(20)
    }
}

/// One rank's side: what it sends, where the sum goes.
#[derive(Debug)]
struct End {
    device: DeviceId,
    stream: StreamId,
    input: Allocation,
    output: Allocation,
}

/// Both ranks on the first two devices.
struct Bed<'a> {
    backend: &'a Arc<DriverBackend>,
    allocator: Allocator,
    gates: DeviceGates,
    ends: [End; 2],
}

/// Measures gates between the first two of `backend`'s devices. True beside the rows when it was
/// stopped before the end.
///
/// # Errors
/// A sentence: there are no two devices with a direct path, or sums were wrong.
pub fn measure_device_gates(
    backend: &Arc<DriverBackend>,
    options: &Options,
    stop: &AtomicBool,
    each: &mut dyn FnMut(&LinkRow),
) -> Result<(Vec<LinkRow>, bool), String> {
    let bed = Bed::open(backend)?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        let bench = format!("gate {}", format_bytes(bytes).replace(' ', ""));
        if !options.wants(&bench) {
            continue;
        }
        bed.fill(bytes)?;
        // Copies first: the gates are held against them.
        let mut copy_ns = None;
        for method in Method::ALL
            .into_iter()
            .rev()
            .filter(|method| method.takes(bytes))
        {
            if stop.load(Ordering::Relaxed) {
                return Ok((rows, true));
            }
            let mut times = Vec::new();
            for round in 0..=options.rounds.max(3) {
                let ns = bed.batch(method, bytes, method.count(bytes, options.quick))?;
                // The first round warms up.
                if round > 0 {
                    times.push(ns);
                }
            }
            let count = method.count(bytes, options.quick) * times.len() as u64;
            let mut row = row(&bench, method.name(), bytes, times, count);
            if method == Method::Copies {
                copy_ns = Some(row.row.p50);
            } else if let Some(copy_ns) = copy_ns {
                let ratio = row.row.p50 / copy_ns;
                row = row.beside(Method::Copies.name(), ratio);
            }
            each(&row);
            rows.push(row);
        }
    }
    let bench = format!("{TOKEN_GATES} gates a token");
    if options.wants(&bench) && !stop.load(Ordering::Relaxed) {
        let tokens = if options.quick { 1_000 } else { 100_000 };
        let ns = bed.tokens(tokens)?;
        let count = tokens * u64::from(TOKEN_GATES);
        rows.push(row(&bench, "graph", TOKEN_BYTES, vec![ns], count));
        rows.last().into_iter().for_each(each);
    }
    bed.close()?;
    Ok((rows, stop.load(Ordering::Relaxed)))
}

/// All bytes of each batch's last gate are compared, on both devices.
fn row(bench: &str, subject: &str, bytes: u64, times: Vec<f64>, gates: u64) -> LinkRow {
    let verified_bytes = times.len() as u64 * 2 * bytes;
    let mut row = LinkRow::new(bench, subject, bytes, times, verified_bytes);
    row.row.n = gates;
    row
}

/// Float `index` of a rank's part: whole, so that every sum of the bench is exact.
fn part(rank: usize, index: u64) -> f32 {
    let [low, high, ..] = (index + 1).wrapping_mul(0x9E37_79B9).to_le_bytes();
    f32::from(u16::from_le_bytes([low, high])) + if rank == 0 { 1.0 } else { 65_536.0 }
}

fn parts(rank: usize, bytes: u64) -> Vec<u8> {
    (0..bytes / 4)
        .flat_map(|index| part(rank, index).to_le_bytes())
        .collect()
}

fn sums(bytes: u64, factor: f32) -> Vec<u8> {
    (0..bytes / 4)
        .flat_map(|index| ((part(0, index) + part(1, index)) * factor).to_le_bytes())
        .collect()
}

impl<'a> Bed<'a> {
    fn open(backend: &'a Arc<DriverBackend>) -> Result<Self, String> {
        let ids = DeviceId::new(0).zip(DeviceId::new(1));
        let Some((first, second)) = ids.filter(|_| backend.devices().len() > 1) else {
            return Err("gates need two devices; one is open".to_owned());
        };
        let devices = [first, second];
        let any: Arc<dyn Backend> = Arc::clone(backend) as Arc<dyn Backend>;
        let allocator = Allocator::new(any, AllocatorConfig::default()).map_err(words)?;
        let most_bytes = SIZES.into_iter().max().unwrap_or_default();
        let gates = DeviceGates::open(&allocator, devices, most_bytes, DEADLINE).map_err(words)?;
        let end = |device| -> Result<End, String> {
            let request = Request {
                mask: DeviceMask::only(device),
                ..Request::new(most_bytes)
            };
            Ok(End {
                device,
                stream: allocator.create_stream(device).map_err(words)?,
                input: allocator.allocate(&request).map_err(words)?,
                output: allocator.allocate(&request).map_err(words)?,
            })
        };
        let ends = [end(first)?, end(second)?];
        Ok(Self {
            backend,
            allocator,
            gates,
            ends,
        })
    }

    fn close(self) -> Result<(), String> {
        self.gates.close(&self.allocator).map_err(words)?;
        self.allocator.close().map_err(words)?;
        Ok(())
    }

    fn fill(&self, bytes: u64) -> Result<(), String> {
        for (rank, end) in self.ends.iter().enumerate() {
            let part = parts(rank, bytes);
            self.backend
                .write(end.device, end.input.address, &part)
                .map_err(words)?;
        }
        Ok(())
    }

    /// Nanoseconds of a gate in a batch of `count`, whose last sums are compared.
    fn batch(&self, method: Method, bytes: u64, count: u64) -> Result<f64, String> {
        for end in &self.ends {
            self.backend
                .fill(end.device, end.output.address, bytes, 0xC3, end.stream)
                .and_then(|()| self.backend.synchronize(end.device, end.stream))
                .map_err(words)?;
        }
        let total_ns = self.together(|rank, start| self.side(method, rank, bytes, count, start))?;
        let want = (method != Method::Copies).then(|| sums(bytes, 1.0));
        for (rank, end) in self.ends.iter().enumerate() {
            self.gates.check(rank).map_err(words)?;
            let mut seen = vec![0; usize::try_from(bytes).unwrap_or(0)];
            self.backend
                .read(end.device, end.output.address, &mut seen)
                .map_err(words)?;
            let right = match &want {
                Some(sums) => *sums == seen,
                None => parts(1 - rank, bytes) == seen,
            };
            if !right {
                return Err(format!(
                    "wrong bytes on {} after {count} gates of {bytes} bytes, {}",
                    end.device,
                    method.name()
                ));
            }
        }
        Ok(total_ns as f64 / count as f64)
    }

    /// Runs both ranks, a thread each, and returns the longer of their times.
    fn together(
        &self,
        side: impl Fn(usize, &Barrier) -> Result<u64, String> + Sync,
    ) -> Result<u64, String> {
        let start = Barrier::new(2);
        thread::scope(|scope| {
            let other = scope.spawn(|| side(1, &start));
            let own = side(0, &start);
            let other = other.join().map_err(|_| "rank 1 panicked".to_owned())?;
            Ok(own?.max(other?))
        })
    }

    fn side(
        &self,
        method: Method,
        rank: usize,
        bytes: u64,
        count: u64,
        start: &Barrier,
    ) -> Result<u64, String> {
        let end = &self.ends[rank];
        let gate = |gates| {
            let (input, output) = (end.input.address, end.output.address);
            self.gates
                .enqueue_many(rank, end.stream, input, output, bytes, gates)
        };
        let graph_gates = GRAPH_GATES.min(count);
        let graph = (method == Method::Graph)
            .then(|| self.captured(end, || (0..graph_gates).try_for_each(|_| gate(1))));
        // Who fails before the start must not leave the other waiting for it.
        start.wait();
        let graph = graph.transpose().map_err(words)?;
        let watch = Stopwatch::start();
        match (method, &graph) {
            (Method::InKernel, _) => gate(count).map_err(words)?,
            (Method::Graph, Some(graph)) => {
                for _ in 0..count / graph_gates {
                    self.backend.replay(graph, end.stream).map_err(words)?;
                }
            }
            (Method::Launched | Method::Graph, _) => {
                (0..count).try_for_each(|_| gate(1)).map_err(words)?;
            }
            (Method::Copies, _) => {
                let other = &self.ends[1 - rank];
                let to = (other.device, other.output.address);
                for _ in 0..count {
                    self.backend
                        .copy_peer((end.device, end.input.address), to, bytes, end.stream)
                        .map_err(words)?;
                }
            }
        }
        self.backend
            .synchronize(end.device, end.stream)
            .map_err(words)?;
        Ok(watch.elapsed_ns())
    }

    fn captured(
        &self,
        end: &End,
        work: impl FnOnce() -> Result<(), DeviceGateError>,
    ) -> Result<Graph, DeviceGateError> {
        self.backend.capture(end.device, end.stream, work)
    }

    /// Nanoseconds of a gate in `tokens` tokens of [`TOKEN_GATES`] gates, each of which doubles the
    /// sum that the first one made: one wrong float in any of them shows in the checksum of all.
    fn tokens(&self, tokens: u64) -> Result<f64, String> {
        self.fill(TOKEN_BYTES)?;
        for end in &self.ends {
            let tally = DeviceAddress(end.output.address.0 + TOKEN_BYTES);
            self.backend
                .write(end.device, tally, &[0; 8])
                .map_err(words)?;
        }
        let total_ns = self.together(|rank, start| self.token_side(rank, tokens, start))?;
        // One sum, and a doubling for each further gate.
        let factor = 2_f32.powi(i32::try_from(TOKEN_GATES - 1).unwrap_or(0));
        let one = checksum(&sums(TOKEN_BYTES, factor), 0);
        let want = one.wrapping_mul(tokens);
        for (rank, end) in self.ends.iter().enumerate() {
            self.gates.check(rank).map_err(words)?;
            let mut seen = [0; 8];
            let tally = DeviceAddress(end.output.address.0 + TOKEN_BYTES);
            self.backend
                .read(end.device, tally, &mut seen)
                .map_err(words)?;
            if u64::from_le_bytes(seen) != want {
                return Err(format!("wrong sums on {} in {tokens} tokens", end.device));
            }
        }
        Ok(total_ns as f64 / (tokens as f64 * f64::from(TOKEN_GATES)))
    }

    fn token_side(&self, rank: usize, tokens: u64, start: &Barrier) -> Result<u64, String> {
        let end = &self.ends[rank];
        let (input, vector) = (end.input.address, end.output.address);
        let graph = self.captured(end, || {
            self.backend
                .copy_local(end.device, input, vector, TOKEN_BYTES, end.stream)?;
            for _ in 0..TOKEN_GATES {
                self.gates
                    .enqueue(rank, end.stream, vector, vector, TOKEN_BYTES)?;
            }
            let tally = Launch::Checksum {
                from: vector.0,
                bytes: TOKEN_BYTES,
                first_position: 0,
                sum: vector.0 + TOKEN_BYTES,
            };
            Ok(self.backend.launch(end.device, end.stream, &tally)?)
        });
        start.wait();
        let graph = graph.map_err(words)?;
        let watch = Stopwatch::start();
        for _ in 0..tokens {
            self.backend.replay(&graph, end.stream).map_err(words)?;
        }
        self.backend
            .synchronize(end.device, end.stream)
            .map_err(words)?;
        Ok(watch.elapsed_ns())
    }
}
