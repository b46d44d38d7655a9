//! All devices at work at once, for as long as asked for, and what that did to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use ds4_engine::alloc::{
    AllocError, Allocation, Allocator, AllocatorConfig, DeviceBudget, Request,
};
use ds4_engine::backend::{Backend, BackendError};
use ds4_engine::bytes::{KIB, MIB, format_bytes};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess, StreamId};
use ds4_kernels::Pattern;
use serde_json::json;

use super::field::{Block, RESULT_BYTES, Span, WORD_BYTES, Wrong};
use super::load::wrong_value;
use super::run::{Finding, Group, Probe, Timer};
use super::{CheckId, Health, Level, Options, Verdict, health};
use crate::stopwatch::Stopwatch;

const fn soak(name: &'static str, code: &'static str) -> CheckId {
    CheckId {
        name,
        code,
        level: Level::Soak,
    }
}

const CHURN: CheckId = soak("soak-memory", "DV-2001");
const COPIES: CheckId = soak("soak-copies", "DV-2002");
const COUNTERS: CheckId = soak("soak-counters", "DV-2003");
const THROTTLE: CheckId = soak("soak-throttle", "DV-2004");

pub(super) const GROUPS: &[Group] = &[Group {
    checks: &[CHURN, COPIES, COUNTERS, THROTTLE],
    body: run,
}];

/// How often devices are asked how they are.
const LOOK: Duration = Duration::from_millis(500);
/// The most bytes of one copy.
const COPY_BYTES: u64 = 256 * MIB;
/// The least block of the churn.
const LEAST_BYTES: u64 = 4 * KIB;
/// Blocks of one device that live at once, at most.
const BLOCKS: usize = 256;

/// What a worker did until it ended.
#[derive(Debug, Default)]
struct Work {
    bytes: u64,
    ops: u64,
    trouble: Option<Trouble>,
}

#[derive(Debug)]
enum Trouble {
    Wrong(Wrong),
    Backend(BackendError),
    Refused(String),
}

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// What a worker is told.
#[derive(Clone, Copy)]
struct Orders<'a> {
    backend: &'a dyn Backend,
    enough: &'a AtomicBool,
}

impl Orders<'_> {
    fn go_on(&self) -> bool {
        !self.enough.load(Ordering::Relaxed)
    }
}

fn run(probe: &Probe<'_>) {
    let (allocator, copy_bytes) = match prepare(probe) {
        Ok(ready) => ready,
        Err(finding) => return probe.tell(&CHURN, None, *finding),
    };
    let before: Vec<Option<Health>> = probe.devices().map(|id| probe.health(id).ok()).collect();
    let pairs = neighbours(probe);
    let enough = AtomicBool::new(false);
    let orders = Orders {
        backend: probe.backend(),
        enough: &enough,
    };
    let timer = probe.timer();
    let (sender, receiver) = channel();
    let mut heat = Heat::default();
    std::thread::scope(|scope| {
        for id in probe.devices() {
            let (sender, allocator) = (sender.clone(), &allocator);
            scope.spawn(move || {
                done(&sender, (id, None), orders, |work| {
                    churn(orders, allocator, id, work)
                });
            });
        }
        for (from, to) in &pairs {
            let (sender, from, to) = (sender.clone(), *from, *to);
            scope.spawn(move || {
                done(&sender, (from, Some(to)), orders, |work| {
                    copies(orders, (from, to), copy_bytes, work)
                });
            });
        }
        drop(sender);
        let watch = Stopwatch::start();
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok((who, work)) => tell(probe, who, &work, &timer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            heat.look(probe);
            if probe.stopped() || watch.elapsed_ns() >= probe.options.soak_ns {
                enough.store(true, Ordering::Relaxed);
            }
        }
    });
    if pairs.is_empty() {
        let why = "no two devices have a direct path that works";
        probe.tell(&COPIES, None, Finding::skip(why));
    }
    if let Err(error) = allocator.close() {
        probe.tell(&CHURN, None, Finding::of_error(&error));
    }
    for (id, before) in probe.devices().zip(&before) {
        let after = probe.health(id);
        let finding = match (before, after) {
            (Some(before), Ok(after)) => counters(before, &after, &timer),
            (_, Err(why)) => Finding::skip(&why),
            (None, Ok(_)) => Finding::skip("it could not be read before"),
        };
        probe.tell(&COUNTERS, Some(id.to_string()), finding);
    }
    heat.tell(probe);
}

/// Runs a worker: once at least, and until it is enough or something is wrong.
fn done(
    sender: &Sender<(Who, Work)>,
    who: Who,
    orders: Orders<'_>,
    body: impl FnOnce(&mut Work) -> Result<(), Trouble>,
) {
    let mut work = Work::default();
    if let Err(trouble) = body(&mut work) {
        work.trouble = Some(trouble);
        // A device that fails ends the run: the others have nothing more to show.
        orders.enough.store(true, Ordering::Relaxed);
    }
    // Nobody listens only if the run has ended already.
    let _ = sender.send((who, work));
}

type Who = (DeviceId, Option<DeviceId>);

fn tell(probe: &Probe<'_>, (id, to): Who, work: &Work, timer: &Timer) {
    let did = timer.did(work.bytes, work.ops);
    let (check, place) = match to {
        None => (&CHURN, id.to_string()),
        Some(to) => (&COPIES, format!("{id}->{to}")),
    };
    let finding = match &work.trouble {
        None => {
            let amount = format_bytes(work.bytes);
            Finding::pass(
                did,
                match to {
                    None => format!("{} blocks, {amount} written and checked", work.ops),
                    Some(_) => format!("{} copies, {amount} moved and checked", work.ops),
                },
            )
        }
        Some(Trouble::Wrong(wrong)) => Finding::fail(did, wrong.sentence())
            .measured(wrong_value(wrong))
            .hint("memory or a path loses bits under load: take the device out of use"),
        Some(Trouble::Refused(why)) => Finding::fail(did, why.clone()),
        Some(Trouble::Backend(error)) => Finding::of_error(error),
    };
    probe.tell(check, Some(place), finding);
}

/// An allocator over half of what may be taken, and how many bytes each copy moves.
fn prepare(probe: &Probe<'_>) -> Result<(Allocator, u64), Box<Finding>> {
    let devices = probe.devices().count().max(1) as u64;
    let mut budgets = Vec::new();
    let mut copy_bytes = COPY_BYTES;
    for id in probe.devices() {
        let quota = probe.quota(id).map_err(|error| Finding::of_error(&error))?;
        // The bytes of all simulated devices are the host's at once.
        let shared = 2 * Options::SIM_MAX_BYTES / devices;
        let quota = if probe.subject.target.is_simulated() {
            quota.min(shared)
        } else {
            quota
        };
        // Four buffers at most: a source and a destination for each of two neighbours.
        copy_bytes = copy_bytes.min(quota / 16 / WORD_BYTES * WORD_BYTES);
        budgets.push(DeviceBudget {
            configured_bytes: Some(quota / 2),
            reserve_bytes: 0,
        });
    }
    if copy_bytes == 0 {
        return Err(Finding::skip("too little memory may be taken").into());
    }
    let config = AllocatorConfig {
        budgets,
        ..AllocatorConfig::default()
    };
    let backend = Arc::clone(probe.subject.target.backend());
    let allocator = Allocator::new(backend, config);
    let allocator = allocator.map_err(|error| Finding::error(&error.to_string()))?;
    Ok((allocator, copy_bytes))
}

/// Each device with the next one, both ways, where there is a direct path.
fn neighbours(probe: &Probe<'_>) -> Vec<(DeviceId, DeviceId)> {
    let count = probe.devices().count();
    probe
        .pairs()
        .filter(|(from, to)| {
            let next = |one: DeviceId| (one.index() + 1) % count;
            next(*from) == to.index() || next(*to) == from.index()
        })
        .filter(|(from, to)| {
            let access = |from, to| probe.backend().peer_access(from, to);
            access(*from, *to) == Ok(PeerAccess::Direct)
        })
        .collect()
}

/// A block with the seed of what was written into it.
struct Filled {
    allocation: Allocation,
    seed: u64,
}

/// Allocates, fills, checks and frees blocks of all sizes on one device.
fn churn(
    orders: Orders<'_>,
    allocator: &Allocator,
    device: DeviceId,
    work: &mut Work,
) -> Result<(), Trouble> {
    let stream = StreamId::DEFAULT;
    let result = Block::take(orders.backend, device, RESULT_BYTES)?;
    let draws = Pattern::Random {
        seed: device.index() as u64,
    };
    let mut live: Vec<Filled> = Vec::new();
    let mut draw = 0;
    let mut next = |below: u64| {
        draw += 1;
        draws.word(draw) % below.max(1)
    };
    let span = |one: &Filled| Span {
        backend: orders.backend,
        device,
        stream,
        address: one.allocation.address,
        words: one.allocation.bytes / WORD_BYTES,
        first_position: 0,
        result: result.address,
    };
    let release = |one: &Filled, work: &mut Work| -> Result<(), Trouble> {
        if let Some(wrong) = span(one).check(Pattern::Random { seed: one.seed })? {
            return Err(Trouble::Wrong(wrong));
        }
        work.bytes = work.bytes.saturating_add(2 * one.allocation.bytes);
        work.ops += 1;
        let freed = allocator.free(one.allocation.handle);
        freed.map_err(|error| Trouble::Refused(error.to_string()))
    };
    // Sizes are spread over their orders of magnitude, up to an eighth of the budget.
    let budget = allocator
        .stats(device)
        .map_or(0, |stats| stats.budget_bytes);
    let orders_of_two = (budget / 8 / LEAST_BYTES).max(1).ilog2();
    loop {
        let least = LEAST_BYTES << next(u64::from(orders_of_two) + 1);
        let bytes = (least + next(least)) / WORD_BYTES * WORD_BYTES;
        let request = Request {
            mask: DeviceMask::only(device),
            ..Request::new(bytes)
        };
        match allocator.allocate(&request) {
            Ok(allocation) => {
                let one = Filled {
                    allocation,
                    seed: next(u64::MAX),
                };
                span(&one).write(Pattern::Random { seed: one.seed })?;
                live.push(one);
            }
            Err(AllocError::Refused(_)) if !live.is_empty() => {}
            Err(error) => return Err(Trouble::Refused(error.to_string())),
        }
        let full = live.len() >= BLOCKS;
        if full || next(3) == 0 || budget == 0 {
            let place = usize::try_from(next(live.len() as u64)).unwrap_or(0);
            if place < live.len() {
                release(&live.swap_remove(place), work)?;
            }
        }
        if !orders.go_on() {
            break;
        }
    }
    live.iter().try_for_each(|one| release(one, work))
}

/// Copies from one device to another, with a new pattern each time.
fn copies(
    orders: Orders<'_>,
    (from, to): (DeviceId, DeviceId),
    bytes: u64,
    work: &mut Work,
) -> Result<(), Trouble> {
    let backend = orders.backend;
    let near = Block::take(backend, from, bytes + RESULT_BYTES)?;
    let far = Block::take(backend, to, bytes + RESULT_BYTES)?;
    let span = |device, stream, address: DeviceAddress| Span {
        backend,
        device,
        stream,
        address,
        words: bytes / WORD_BYTES,
        first_position: 0,
        result: DeviceAddress(address.0 + bytes),
    };
    let source = span(from, backend.create_stream(from)?, near.address);
    let target = span(to, backend.create_stream(to)?, far.address);
    let copied = (|| {
        let mut seed = from.index() as u64;
        loop {
            seed += 0x100;
            let pattern = Pattern::Random { seed };
            source.write(pattern)?;
            backend.copy_peer(
                (from, near.address),
                (to, far.address),
                bytes,
                source.stream,
            )?;
            source.wait()?;
            if let Some(wrong) = target.check(pattern)? {
                return Err(Trouble::Wrong(wrong));
            }
            work.bytes = work.bytes.saturating_add(bytes);
            work.ops += 1;
            if !orders.go_on() {
                return Ok(());
            }
        }
    })();
    let ends = [&source, &target].map(|span| backend.destroy_stream(span.device, span.stream));
    copied?;
    ends.into_iter()
        .try_for_each(|end| end.map_err(Trouble::from))
}

/// What rose while the devices worked.
fn counters(before: &Health, after: &Health, timer: &Timer) -> Finding {
    let mut rose = Vec::new();
    let mut worst = Verdict::Pass;
    let mut readings = 0;
    let mut compare = |name: &str, old: Option<u64>, new: Option<u64>, verdict: Verdict| {
        let (Some(old), Some(new)) = (old, new) else {
            return;
        };
        readings += 1;
        if new > old {
            rose.push(format!("{name} from {old} to {new}"));
            worst = worst.max(verdict);
        }
    };
    let ecc =
        |health: &Health, of: fn(&super::EccErrors) -> u64| health.ecc_errors.as_ref().ok().map(of);
    let (corrected, uncorrected) = (
        |errors: &super::EccErrors| errors.corrected,
        |errors: &super::EccErrors| errors.uncorrected,
    );
    compare(
        "corrected memory errors",
        ecc(before, corrected),
        ecc(after, corrected),
        Verdict::Warn,
    );
    compare(
        "uncorrected memory errors",
        ecc(before, uncorrected),
        ecc(after, uncorrected),
        Verdict::Fail,
    );
    let rows = |health: &Health| {
        health
            .remapped
            .as_ref()
            .ok()
            .map(|rows| rows.corrected.saturating_add(rows.uncorrected))
    };
    compare("replaced rows", rows(before), rows(after), Verdict::Warn);
    let replays = |health: &Health| health.pcie_replays.as_ref().ok().copied();
    compare(
        "PCIe replays",
        replays(before),
        replays(after),
        Verdict::Warn,
    );
    let links = |health: &Health, of: fn(&super::LinkErrors) -> u64| {
        let links = health.links.as_ref().ok()?;
        let errors = links.iter().map(|link| link.errors.as_ref().ok().map(of));
        errors.sum::<Option<u64>>()
    };
    let (recoveries, others) = (
        |errors: &super::LinkErrors| errors.recovery,
        |errors: &super::LinkErrors| errors.sum() - errors.recovery,
    );
    compare(
        "NVLink recoveries",
        links(before, recoveries),
        links(after, recoveries),
        Verdict::Fail,
    );
    compare(
        "NVLink errors",
        links(before, others),
        links(after, others),
        Verdict::Warn,
    );
    if readings == 0 {
        return Finding::skip("the device has no counters that can be read");
    }
    let did = timer.did(0, readings);
    let finding = if rose.is_empty() {
        Finding::pass(did, format!("none of {readings} error counters rose"))
    } else {
        Finding::new(worst, did, rose.join(", ")).hint("errors under load: see ecc and nvlink")
    };
    finding.measured(json!({ "counters": readings, "rose": rose }))
}

/// The hottest that was seen of each device, and whether clocks were held back.
#[derive(Default)]
struct Heat(std::collections::BTreeMap<DeviceId, Seen>);

#[derive(Default)]
struct Seen {
    looks: u64,
    celsius: Option<u32>,
    harmful: Option<Finding>,
    why_not: String,
}

impl Heat {
    fn look(&mut self, probe: &Probe<'_>) {
        for id in probe.devices() {
            let seen = self.0.entry(id).or_default();
            match probe.health(id) {
                Ok(health) => {
                    seen.looks += 1;
                    seen.celsius = seen
                        .celsius
                        .max(health.temperature_c.as_ref().ok().copied());
                    let finding = health::throttle(&health);
                    match finding.verdict {
                        Verdict::Warn => seen.harmful = Some(finding),
                        Verdict::Skip => seen.why_not = finding.detail,
                        Verdict::Pass | Verdict::Fail | Verdict::Error => {}
                    }
                }
                Err(why) => seen.why_not = why,
            }
        }
    }

    fn tell(self, probe: &Probe<'_>) {
        for (id, seen) in self.0 {
            let warmth = match seen.celsius {
                Some(celsius) => format!(", {celsius} °C at most"),
                None => String::new(),
            };
            let did = super::Did {
                ops: seen.looks,
                ..Default::default()
            };
            let finding = if let Some(mut harmful) = seen.harmful {
                harmful.detail.push_str(&warmth);
                harmful.did = did;
                harmful
            } else if seen.why_not.is_empty() {
                Finding::pass(
                    did,
                    format!("clocks were not held back by heat or power{warmth}"),
                )
                .measured(json!({ "celsius": seen.celsius }))
            } else {
                Finding::skip(&seen.why_not)
            };
            probe.tell(&THROTTLE, Some(id.to_string()), finding);
        }
    }
}
