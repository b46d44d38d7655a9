//! Every backend call of a scenario fails once: the first, the second, and so on until the
//! scenario ends untouched; once for that call alone, once for all calls from there on.
//!
//! After each failure the books hold, a refused call has changed nothing, and, once the faults are
//! over, the scenario succeeds and nothing is left behind.

use ds4_engine::alloc::{Allocation, Request};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_sim::{FaultKind, FaultPlan};

use super::Suite::OomLoop;
use super::churn::fill;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Setup, World, instruments};

/// More calls than any scenario makes.
const MOST_CALLS: u64 = 4_000;
/// Budgets are a quarter of the usual, so that scenarios are short.
const SMALL: Setup = Setup {
    excluded: DeviceMask::EMPTY,
    strict: false,
    shrink: 2,
};
/// How long a block is still used when it is freed, where time is virtual, in nanoseconds.
const BUSY_NS: u64 = 1_000_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: OomLoop,
        name: "opening-fails-cleanly-at-every-call",
        needs: Needs::NOTHING,
        body: opening,
    },
    Check {
        suite: OomLoop,
        name: "allocation-survives-a-failure-of-every-call",
        needs: Needs::NOTHING,
        body: allocating,
    },
    Check {
        suite: OomLoop,
        name: "remapping-survives-a-failure-of-every-call",
        needs: Needs::NOTHING,
        body: remapping,
    },
    Check {
        suite: OomLoop,
        name: "stream-order-survives-a-failure-of-every-call",
        needs: Needs::NOTHING,
        body: streams,
    },
    Check {
        suite: OomLoop,
        name: "copies-survive-a-failure-of-every-call",
        needs: Needs::TWO,
        body: copies,
    },
    Check {
        suite: OomLoop,
        name: "trimming-survives-a-failure-of-every-call",
        needs: Needs::NOTHING,
        body: trimming,
    },
    Check {
        suite: OomLoop,
        name: "closing-leaves-behind-only-what-failed",
        needs: Needs::NOTHING,
        body: closing,
    },
];

const KINDS: [FaultKind; 3] = [FaultKind::Oom, FaultKind::Fail, FaultKind::OomKeep];

/// The machine is opened with pages everywhere, and without.
const PAGING: [bool; 2] = [true, false];

/// What is done before the faults begin, and under them.
struct Scenario {
    prepare: fn(&mut World) -> Held,
    act: fn(&mut World) -> Held,
}

fn every_call_fails(trial: &mut Trial<'_>, scenario: &Scenario) -> Held {
    for pages in PAGING {
        for kind in KINDS {
            for persistent in [false, true] {
                for nth in 1.. {
                    within_bound(nth)?;
                    trial.go_on()?;
                    let fired = one_failure(
                        trial,
                        pages,
                        scenario,
                        FaultPlan::nth(kind, nth, persistent),
                    );
                    let place = format!(
                        "{} at call {nth}{}",
                        kind.name(),
                        if persistent { " and after" } else { "" }
                    );
                    match fired {
                        Ok(0) => break,
                        Ok(_) => {}
                        Err(Failure::Broken(why)) => {
                            return Err(Failure::Broken(format!("{place}: {why}")));
                        }
                        Err(other) => return Err(other),
                    }
                }
            }
        }
    }
    Ok(())
}

fn one_failure(
    trial: &mut Trial<'_>,
    pages: bool,
    scenario: &Scenario,
    plan: FaultPlan,
) -> Result<u64, Failure> {
    let target = trial.target.with_paging(pages).map_err(Failure::error)?;
    let mut world = World::open(target, SMALL)?;
    let instruments = world.instruments.clone();
    (scenario.prepare)(&mut world)?;
    instruments.set_faults(plan).map_err(Failure::error)?;
    world.faulty = true;
    (scenario.act)(&mut world)?;
    let fired = instruments
        .clear_faults()
        .iter()
        .map(|count| count.fired)
        .sum();
    world.settle();
    world.check()?;
    instruments.restore_memory();
    world.faulty = false;
    world.tally.faults += fired;
    // Without faults the same must go through: the world checks every refusal against its model.
    (scenario.act)(&mut world)?;
    trial.close(world)?;
    Ok(fired)
}

/// A scenario of which every call so far was made to fail has not ended yet.
fn within_bound(nth: u64) -> Held {
    hold!(
        nth < MOST_CALLS,
        "the scenario makes {MOST_CALLS} calls or more: it was never left untouched"
    );
    Ok(())
}

fn gpu0() -> DeviceMask {
    DeviceMask(1)
}

fn on(stream: StreamId, bytes: u64) -> Request {
    Request {
        mask: gpu0(),
        stream,
        ..Request::new(bytes)
    }
}

fn first() -> Result<DeviceId, Failure> {
    DeviceId::new(0).ok_or_else(|| Failure::error("no device 0"))
}

fn nothing(_: &mut World) -> Held {
    Ok(())
}

fn opening(trial: &mut Trial<'_>) -> Held {
    for pages in PAGING {
        for kind in [FaultKind::Oom, FaultKind::Fail, FaultKind::Lost] {
            for persistent in [false, true] {
                for nth in 1.. {
                    within_bound(nth)?;
                    trial.go_on()?;
                    let target = trial.target.with_paging(pages).map_err(Failure::error)?;
                    let instruments = instruments(&target)?;
                    instruments
                        .set_faults(FaultPlan::nth(kind, nth, persistent))
                        .map_err(Failure::error)?;
                    let opened = World::allocator(target.backend(), &SMALL);
                    let fired: u64 = instruments
                        .clear_faults()
                        .iter()
                        .map(|count| count.fired)
                        .sum();
                    trial.tally.faults += fired;
                    trial.tally.rejected += u64::from(opened.is_err());
                    drop(opened);
                    instruments.ledger().check_shutdown();
                    // Under a persistent failure nothing can be given back either.
                    let findings = instruments.ledger().findings();
                    hold!(
                        findings.is_empty() || (persistent && kind == FaultKind::Fail),
                        "{} at call {nth} of opening leaves: {findings:?}",
                        kind.name()
                    );
                    if fired == 0 {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

fn allocating(trial: &mut Trial<'_>) -> Held {
    let act = |world: &mut World| {
        for bytes in [256, MIB, 3 * MIB, 5 * MIB / 2, 4 * MIB] {
            world.request(&on(StreamId::DEFAULT, bytes))?.ok();
            world.request(&Request::new(bytes))?.ok();
        }
        world.free(1)?;
        world.request(&on(StreamId::DEFAULT, 5 * MIB))?.ok();
        Ok(())
    };
    every_call_fails(
        trial,
        &Scenario {
            prepare: nothing,
            act,
        },
    )
}

fn remapping(trial: &mut Trial<'_>) -> Held {
    let prepare = |world: &mut World| {
        fill(world, first()?, 2 * MIB)?;
        let mut sorted = world.live.clone();
        sorted.sort_by_key(|owned| owned.allocation.offset_bytes);
        for owned in sorted.iter().step_by(2) {
            world.give_back(owned)?;
        }
        Ok(())
    };
    let act = |world: &mut World| {
        let bytes = world.budget(first()?) - world.used(first()?);
        world.request(&on(StreamId::DEFAULT, bytes.max(1)))?.ok();
        world.request(&on(StreamId::DEFAULT, 512))?.ok();
        Ok(())
    };
    every_call_fails(trial, &Scenario { prepare, act })
}

fn streams(trial: &mut Trial<'_>) -> Held {
    let prepare = |world: &mut World| {
        world
            .allocator
            .create_stream(first()?)
            .map_err(Failure::error)?;
        fill(world, first()?, MIB)
    };
    let act = |world: &mut World| {
        let second = StreamId(1);
        let half = world.live.len() / 2;
        for owned in world.live.iter().take(half) {
            let Allocation {
                device,
                address,
                bytes,
                ..
            } = owned.allocation;
            world
                .instruments
                .touch(device, owned.stream, address, bytes, BUSY_NS)
                .map_err(Failure::error)?;
        }
        for _ in 0..half {
            world.free(0)?;
        }
        if let Some(owned) = world
            .live
            .first()
            .copied()
            .filter(|owned| owned.stream == StreamId::DEFAULT)
        {
            world
                .allocator
                .record_use(owned.allocation.handle, second)
                .map_err(Failure::error)?;
            world.free(0)?;
        }
        world.request(&on(second, 2 * MIB))?.ok();
        world.request(&on(second, 3 * MIB))?.ok();
        world.request(&on(StreamId::DEFAULT, 2 * MIB))?.ok();
        Ok(())
    };
    every_call_fails(trial, &Scenario { prepare, act })
}

fn copies(trial: &mut Trial<'_>) -> Held {
    let prepare = |world: &mut World| {
        for id in [0, 1].into_iter().filter_map(DeviceId::new) {
            let stream = world.allocator.create_stream(id).map_err(Failure::error)?;
            for stream in [StreamId::DEFAULT, stream] {
                let request = Request {
                    mask: DeviceMask::only(id),
                    stream,
                    ..Request::new(MIB)
                };
                world.grant(&request)?;
            }
        }
        Ok(())
    };
    let act = |world: &mut World| {
        let blocks: Vec<_> = world.live.iter().take(4).copied().collect();
        for from in &blocks {
            for to in blocks
                .iter()
                .filter(|to| to.allocation.handle != from.allocation.handle)
            {
                let copied = world.copy(from.allocation.handle, to.allocation.handle, 4096)?;
                // The target's stream goes on with it: the copy must be in order before that.
                if copied.is_some() {
                    let (stream, to) = (to.stream, to.allocation);
                    world
                        .instruments
                        .touch(to.device, stream, to.address, to.bytes, 1)
                        .map_err(Failure::error)?;
                }
            }
        }
        Ok(())
    };
    every_call_fails(trial, &Scenario { prepare, act })
}

fn trimming(trial: &mut Trial<'_>) -> Held {
    let prepare = |world: &mut World| {
        for bytes in [MIB, 4 * MIB, MIB] {
            world.grant(&on(StreamId::DEFAULT, bytes))?;
        }
        world.free(1).map(|_| ())
    };
    let act = |world: &mut World| {
        world.trim()?;
        world.request(&on(StreamId::DEFAULT, 3 * MIB))?.ok();
        world.free(world.live.len().saturating_sub(1))?;
        world.trim()
    };
    every_call_fails(trial, &Scenario { prepare, act })
}

/// Each call of closing fails once: all but what that call was about goes back.
fn closing(trial: &mut Trial<'_>) -> Held {
    for pages in PAGING {
        for nth in 1.. {
            within_bound(nth)?;
            trial.go_on()?;
            let target = trial.target.with_paging(pages).map_err(Failure::error)?;
            let mut world = World::open(target, SMALL)?;
            let instruments = world.instruments.clone();
            world.grant(&on(StreamId::DEFAULT, 3 * MIB))?;
            world.free(0)?;
            world.grant(&Request::new(MIB))?;
            world.free(0)?;
            // A failed wait must not stand between the blocks' first use and the end of their memory.
            for id in DeviceMask::first(trial.devices()).iter() {
                world.allocator.synchronize(id).map_err(Failure::error)?;
            }
            trial.tally.add(&world.tally);
            let World { allocator, .. } = world;
            instruments
                .set_faults(FaultPlan::nth(FaultKind::Fail, nth, false))
                .map_err(Failure::error)?;
            let closed = allocator.close();
            let fired: u64 = instruments
                .clear_faults()
                .iter()
                .map(|count| count.fired)
                .sum();
            trial.tally.faults += fired;
            instruments.ledger().check_shutdown();
            let findings = instruments.ledger().findings();
            // A page that stays mapped keeps itself, its place and its range.
            hold!(
                findings.len() <= 3,
                "a failure of call {nth} of closing leaves {findings:?}"
            );
            hold!(
                closed.is_err() || findings.is_empty(),
                "closing hides what it left: {findings:?}"
            );
            if fired == 0 {
                break;
            }
        }
    }
    Ok(())
}
