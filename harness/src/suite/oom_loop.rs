//! Every backend call of a scenario fails once: the first, the second, and so on until the
//! scenario ends untouched; once for that call alone, once for all calls from there on.
//!
//! After each failure the books hold, a refused call has changed nothing, and, once the faults are
//! over, the scenario succeeds and nothing is left behind.

use ds4_engine::alloc::Request;
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_sim::{FaultKind, FaultPlan, SimConfig};

use super::Suite::OomLoop;
use super::churn::fill;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Setup, World};
use crate::target::Target;

/// More calls than any scenario makes.
const MOST_CALLS: u64 = 4_000;
/// Budgets are a quarter of the usual, so that scenarios are short.
const SMALL: Setup = Setup {
    excluded: DeviceMask::EMPTY,
    strict: false,
    shrink: 2,
};
/// How long a stream is kept busy, in simulated nanoseconds.
const BUSY_NS: u64 = 1_000_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: OomLoop,
        name: "opening-fails-cleanly-at-every-call",
        needs: Needs::SIM,
        body: opening,
    },
    Check {
        suite: OomLoop,
        name: "allocation-survives-a-failure-of-every-call",
        needs: Needs::SIM,
        body: allocating,
    },
    Check {
        suite: OomLoop,
        name: "remapping-survives-a-failure-of-every-call",
        needs: Needs::SIM,
        body: remapping,
    },
    Check {
        suite: OomLoop,
        name: "stream-order-survives-a-failure-of-every-call",
        needs: Needs::SIM,
        body: streams,
    },
    Check {
        suite: OomLoop,
        name: "copies-survive-a-failure-of-every-call",
        needs: Needs::SIM_TWO,
        body: copies,
    },
    Check {
        suite: OomLoop,
        name: "trimming-survives-a-failure-of-every-call",
        needs: Needs::SIM,
        body: trimming,
    },
    Check {
        suite: OomLoop,
        name: "closing-leaves-behind-only-what-failed",
        needs: Needs::SIM,
        body: closing,
    },
];

const KINDS: [FaultKind; 3] = [FaultKind::Oom, FaultKind::Fail, FaultKind::OomKeep];

/// The machine with pages everywhere, and without.
fn variants(trial: &Trial<'_>) -> Result<Vec<SimConfig>, Failure> {
    let sim = trial
        .target
        .sim()
        .ok_or_else(|| Failure::Skip("needs a simulated machine".to_owned()))?;
    let with = |page_bytes| {
        let mut config = sim.config().clone();
        config
            .devices
            .iter_mut()
            .for_each(|device| device.page_bytes = page_bytes);
        config
    };
    Ok(vec![with(Some(2 * MIB)), with(None)])
}

/// What is done before the faults begin, and under them.
struct Scenario {
    prepare: fn(&mut World) -> Held,
    act: fn(&mut World) -> Held,
}

fn every_call_fails(trial: &mut Trial<'_>, scenario: &Scenario) -> Held {
    for config in variants(trial)? {
        for kind in KINDS {
            for persistent in [false, true] {
                for nth in 1..MOST_CALLS {
                    trial.go_on()?;
                    let fired = one_failure(
                        trial,
                        &config,
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
    config: &SimConfig,
    scenario: &Scenario,
    plan: FaultPlan,
) -> Result<u64, Failure> {
    let target = Target::simulated(config.clone()).map_err(Failure::error)?;
    let mut world = World::open(target, SMALL)?;
    let sim = world.simulated()?;
    (scenario.prepare)(&mut world)?;
    sim.set_faults(plan).map_err(Failure::error)?;
    world.faulty = true;
    (scenario.act)(&mut world)?;
    let fired = sim.clear_faults().iter().map(|count| count.fired).sum();
    world.settle();
    world.check()?;
    sim.restore_memory();
    world.faulty = false;
    world.tally.faults += fired;
    // Without faults the same must go through: the world checks every refusal against its model.
    (scenario.act)(&mut world)?;
    trial.close(world)?;
    Ok(fired)
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
    for config in variants(trial)? {
        for kind in [FaultKind::Oom, FaultKind::Fail, FaultKind::Lost] {
            for persistent in [false, true] {
                for nth in 1..MOST_CALLS {
                    trial.go_on()?;
                    let target = Target::simulated(config.clone()).map_err(Failure::error)?;
                    let Some(sim) = target.sim().cloned() else {
                        break;
                    };
                    sim.set_faults(FaultPlan::nth(kind, nth, persistent))
                        .map_err(Failure::error)?;
                    let opened = World::allocator(target.backend(), &SMALL);
                    let fired: u64 = sim.clear_faults().iter().map(|count| count.fired).sum();
                    trial.tally.faults += fired;
                    trial.tally.rejected += u64::from(opened.is_err());
                    drop(opened);
                    sim.ledger().check_shutdown();
                    // Under a persistent failure nothing can be given back either.
                    let findings = sim.ledger().findings();
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
        let sim = world.simulated()?;
        let second = StreamId(1);
        let half = world.live.len() / 2;
        sim.busy(first()?, StreamId::DEFAULT, BUSY_NS)
            .map_err(Failure::error)?;
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
                    let (sim, stream, to) = (world.simulated()?, to.stream, to.allocation);
                    sim.touch(to.device, stream, to.address, to.bytes, 1)
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
    for config in variants(trial)? {
        for nth in 1..MOST_CALLS {
            trial.go_on()?;
            let target = Target::simulated(config.clone()).map_err(Failure::error)?;
            let mut world = World::open(target, SMALL)?;
            let sim = world.simulated()?;
            world.grant(&on(StreamId::DEFAULT, 3 * MIB))?;
            world.free(0)?;
            world.grant(&Request::new(MIB))?;
            world.free(0)?;
            trial.tally.add(&world.tally);
            let World { allocator, .. } = world;
            sim.set_faults(FaultPlan::nth(FaultKind::Fail, nth, false))
                .map_err(Failure::error)?;
            let closed = allocator.close();
            let fired: u64 = sim.clear_faults().iter().map(|count| count.fired).sum();
            trial.tally.faults += fired;
            sim.ledger().check_shutdown();
            let findings = sim.ledger().findings();
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
