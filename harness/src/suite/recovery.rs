//! Success after a refusal: by freeing, by relaxing, by what others give back.

use ds4_engine::alloc::{AllocError, Request};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask};

use super::Suite::Recovery;
use super::churn::fill;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Setup, World};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Recovery,
        name: "a-refused-request-succeeds-once-enough-is-freed",
        needs: Needs::NOTHING,
        body: after_frees,
    },
    Check {
        suite: Recovery,
        name: "a-relaxed-mask-succeeds-at-once",
        needs: Needs::TWO,
        body: relaxed_mask,
    },
    Check {
        suite: Recovery,
        name: "a-ladder-reports-the-rung-that-won-and-tries-no-device-twice",
        needs: Needs::TWO,
        body: ladder,
    },
    Check {
        suite: Recovery,
        name: "scattered-free-pages-serve-a-large-request",
        needs: Needs::NOTHING,
        body: remapping,
    },
    Check {
        suite: Recovery,
        name: "trimmed-memory-goes-back-to-the-driver-and-comes-again",
        needs: Needs::NOTHING,
        body: trimming,
    },
    Check {
        suite: Recovery,
        name: "empty-slabs-make-room-for-a-larger-one",
        needs: Needs::NOTHING.spare(),
        body: empty_slabs,
    },
];

fn only(id: DeviceId, bytes: u64) -> Request {
    Request {
        mask: DeviceMask::only(id),
        ..Request::new(bytes)
    }
}

fn after_frees(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        fill(&mut world, id, MIB)?;
        let large = only(id, 4 * MIB);
        world.refuse(&large)?;
        // Neighbours, so that slabs have them in one piece.
        let mut sorted: Vec<_> = world.live.clone();
        sorted.sort_by_key(|owned| owned.allocation.offset_bytes);
        let mut freed = 0;
        for owned in &sorted {
            world.give_back(owned)?;
            freed += 1;
            let fits = world.could_hold(id, &large, u64::MAX);
            if world.request(&large)?.is_ok() {
                world.tally.met("refusal, then success after a free");
                break;
            }
            hold!(
                !fits && freed < 8,
                "{freed} MiB in one piece are free and 4 MiB are refused"
            );
        }
        trial.close(world)?;
    }
    Ok(())
}

fn relaxed_mask(trial: &mut Trial<'_>) -> Held {
    let ids: Vec<DeviceId> = DeviceMask::first(trial.devices()).iter().collect();
    for (id, other) in ids.iter().zip(ids.iter().cycle().skip(1)) {
        let mut world = trial.world(Setup::default())?;
        fill(&mut world, *id, 2 * MIB)?;
        world.refuse(&only(*id, 2 * MIB))?;
        let both = DeviceMask::only(*id).or(DeviceMask::only(*other));
        let owned = world.grant(&Request {
            mask: both,
            ..Request::new(2 * MIB)
        })?;
        hold!(
            owned.allocation.device == *other,
            "a full device took a relaxed request"
        );
        world.tally.met("refusal, then success on a relaxed mask");
        trial.close(world)?;
    }
    Ok(())
}

fn ladder(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let ids: Vec<DeviceId> = DeviceMask::first(trial.devices()).iter().collect();
    let (Some(first), Some(last)) = (ids.first().copied(), ids.last().copied()) else {
        return Ok(());
    };
    fill(&mut world, first, MIB)?;
    let request = only(first, 2 * MIB);
    let rungs = [
        DeviceMask::only(first),
        DeviceMask::only(first),
        DeviceMask::only(last),
    ];
    let calls = |world: &World| {
        world
            .allocator
            .stats(first)
            .map_or(0, |stats| stats.refusals)
    };
    let before = calls(&world);
    let relaxed = world.allocator.allocate_relaxing(&request, &rungs);
    let relaxed = relaxed.map_err(|error| Failure::Broken(error.to_string()))?;
    hold!(
        relaxed.rung == 3,
        "rung {} won, the last one had to",
        relaxed.rung
    );
    hold!(
        calls(&world) - before == 1,
        "{first} was tried more than once"
    );
    let taken = Request {
        mask: DeviceMask::only(last),
        ..request
    };
    let owned = world.accept(&taken, relaxed.allocation, &[last])?;
    world.give_back(&owned)?;
    fill(&mut world, last, MIB)?;
    world.tally.refusals += 1;
    let hash = world.allocator.state_hash();
    match world.allocator.allocate_relaxing(&request, &rungs) {
        Err(AllocError::Refused(refusal)) => {
            let tried = matches!(&refusal.cause, ds4_engine::alloc::RefusalCause::Tried(tried) if tried.len() == 2);
            hold!(
                tried,
                "each device of the ladder must be named once: {refusal}"
            );
        }
        other => return Err(Failure::Broken(format!("a full ladder gives {other:?}"))),
    }
    hold!(
        hash == world.allocator.state_hash(),
        "a refused ladder changed the state"
    );
    trial.close(world)
}

/// Frees every second block of a full device and asks for all that is free.
fn remapping(trial: &mut Trial<'_>) -> Held {
    let mut shown = false;
    for id in DeviceMask::first(trial.devices()).iter() {
        let page = trial
            .target
            .backend()
            .devices()
            .get(id.index())
            .and_then(|info| info.page_bytes);
        let Some(page) = page.filter(|page| *page <= 2 * MIB) else {
            continue;
        };
        shown = true;
        let mut world = trial.world(Setup::default())?;
        fill(&mut world, id, page)?;
        let mut sorted = world.live.clone();
        sorted.sort_by_key(|owned| owned.allocation.offset_bytes);
        for owned in sorted.iter().step_by(2) {
            world.give_back(owned)?;
        }
        let free = world.budget(id) - world.used(id);
        world.grant(&only(id, free))?;
        world.refuse(&only(id, 1))?;
        trial.close(world)?;
    }
    if shown {
        Ok(())
    } else {
        Err(Failure::Skip("no device here maps pages".to_owned()))
    }
}

fn trimming(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let reserved = |world: &World| {
            world
                .allocator
                .stats(id)
                .map_or(0, |stats| stats.reserved_bytes)
        };
        let kept = world.grant(&only(id, MIB))?;
        let large = world.grant(&only(id, 8 * MIB))?;
        let before = reserved(&world);
        world.give_back(&large)?;
        world.trim()?;
        let pages = trial
            .target
            .backend()
            .devices()
            .get(id.index())
            .is_some_and(|info| info.page_bytes.is_some());
        hold!(
            !pages || reserved(&world) + 6 * MIB <= before,
            "{} of {before} bytes stay reserved",
            reserved(&world)
        );
        world.give_back(&kept)?;
        world.trim()?;
        hold!(
            reserved(&world) == 0,
            "{} bytes stay reserved of nothing",
            reserved(&world)
        );
        let half = world.budget(id) / 2;
        world.grant(&only(id, half))?;
        trial.close(world)?;
    }
    Ok(())
}

/// While others hold memory, slabs come small; once it is free again, a large one replaces them.
fn empty_slabs(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let target = trial.target.with_paging(false).map_err(Failure::error)?;
        let mut world = World::open(target, Setup::default())?;
        let instruments = world.instruments.clone();
        let free = world
            .target
            .backend()
            .memory_info(id)
            .map_err(Failure::error)?
            .free_bytes;
        // So much is left that the first slab has to be half as large as the budget.
        instruments.take_memory(id, free - world.budget(id) + 3 * MIB);
        fill(&mut world, id, MIB)?;
        instruments.give_memory(id, u64::MAX);
        fill(&mut world, id, MIB)?;
        let large = only(id, world.budget(id) - 4 * MIB);
        world.refuse(&large)?;
        while !world.live.is_empty() {
            world.free(0)?;
        }
        world.grant(&large)?;
        trial.close(world)?;
    }
    Ok(())
}
