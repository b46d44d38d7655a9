//! Refusals that are right, complete, and change nothing.

use ds4_engine::alloc::{RefusalCause, RefusalReason, Request};
use ds4_engine::bytes::{KIB, MIB};
use ds4_engine::device::{DeviceId, DeviceMask};
use ds4_sim::{Fault, FaultKind, FaultPlan};

use super::Suite::Refusal;
use super::churn::{Churn, fill};
use super::rng::Rng;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::Setup;

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Refusal,
        name: "a-refusal-names-every-candidate-and-changes-nothing",
        needs: Needs::NOTHING,
        body: full_machine,
    },
    Check {
        suite: Refusal,
        name: "nothing-that-fits-is-refused",
        needs: Needs::NOTHING,
        body: no_false_refusal,
    },
    Check {
        suite: Refusal,
        name: "a-budget-can-be-used-up-and-never-exceeded",
        needs: Needs::NOTHING,
        body: budgets,
    },
    Check {
        suite: Refusal,
        name: "memory-that-others-take-is-a-driver-refusal-and-pages-in-use-still-serve",
        needs: Needs::NOTHING,
        body: other_processes,
    },
    Check {
        suite: Refusal,
        name: "a-lost-device-is-named-and-the-next-candidate-serves",
        needs: Needs::TWO,
        body: lost_device,
    },
];

fn ids(trial: &Trial<'_>) -> Vec<DeviceId> {
    DeviceMask::first(trial.devices()).iter().collect()
}

fn page_bytes(trial: &Trial<'_>, id: DeviceId) -> Option<u64> {
    let infos = trial.target.backend().devices();
    infos.get(id.index()).and_then(|info| info.page_bytes)
}

fn maps_pages(trial: &Trial<'_>, id: DeviceId) -> bool {
    page_bytes(trial, id).is_some()
}

fn full_machine(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    for id in ids(trial) {
        fill(&mut world, id, MIB)?;
    }
    for hint in 0..=DeviceMask::first(trial.devices().min(6)).0 {
        let refusal = world.refuse(&Request {
            mask: DeviceMask(hint),
            ..Request::new(MIB)
        })?;
        let RefusalCause::Tried(tried) = &refusal.cause else {
            return Err(Failure::Broken(format!("no device was tried: {refusal}")));
        };
        let sentence = refusal.to_string();
        for candidate in tried {
            hold!(
                candidate.reason == RefusalReason::Budget
                    // Slabs lose a little to alignment, so theirs is never used up.
                    || !maps_pages(trial, candidate.device)
                        && matches!(candidate.reason, RefusalReason::Fragmentation { .. }),
                "full, but refused with {:?}",
                candidate.reason
            );
            let name = candidate.device.to_string();
            hold!(
                sentence.contains(&name),
                "the sentence leaves {name} out: {sentence}"
            );
        }
    }
    trial.close(world)
}

fn no_false_refusal(trial: &mut Trial<'_>) -> Held {
    for case in 0..trial.cases.div_ceil(2) {
        let mut world = trial.world(Setup::default())?;
        let mut rng = Rng::part(trial.seed, 0x100 + u64::from(case));
        let churn = Churn {
            steps: 60,
            most_bytes: (1 << rng.below(7)) * MIB,
            asks: 90,
        };
        churn.run(&mut world, &mut rng)?;
        // Nearly full, with holes: where refusals are easy to get wrong.
        Churn {
            steps: 140,
            asks: 55,
            ..churn
        }
        .run(&mut world, &mut rng)?;
        trial.close(world)?;
    }
    Ok(())
}

fn budgets(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    for id in ids(trial) {
        let budget = world.budget(id);
        // A slab may lose up to 4 MiB to alignment; pages lose nothing.
        let loss = if world
            .target
            .backend()
            .devices()
            .get(id.index())
            .is_some_and(|d| d.page_bytes.is_none())
        {
            4 * MIB
        } else {
            0
        };
        fill(&mut world, id, 64 * KIB)?;
        let used = world.used(id);
        hold!(
            used <= budget && used >= budget - loss,
            "{id} is full with {used} of {budget} bytes"
        );
        let over = Request {
            mask: DeviceMask::only(id),
            ..Request::new(64 * KIB)
        };
        world.refuse(&over)?;
    }
    trial.close(world)
}

fn other_processes(trial: &mut Trial<'_>) -> Held {
    for id in ids(trial) {
        let mut world = trial.world(Setup::default())?;
        let instruments = world.instruments.clone();
        let on = |bytes| Request {
            mask: DeviceMask::only(id),
            ..Request::new(bytes)
        };
        let page = page_bytes(trial, id);
        if let Some(page) = page {
            world.grant(&on(page / 4 * 3))?;
        }
        instruments.take_memory(id, u64::MAX);
        let refusal = world.refuse(&on(world.budget(id) / 2))?;
        let driver = first_reason(&refusal)
            .is_some_and(|reason| matches!(reason, RefusalReason::DriverOutOfMemory { .. }));
        hold!(
            driver,
            "the driver has no memory left, but the refusal says {refusal}"
        );
        if let Some(page) = page {
            // What is left of the page in use needs no memory from the driver.
            world.grant(&on(page / 8))?;
        }
        instruments.give_memory(id, u64::MAX);
        let half = world.budget(id) / 2;
        world.grant(&on(half))?;
        trial.close(world)?;
    }
    Ok(())
}

fn first_reason(refusal: &ds4_engine::alloc::Refusal) -> Option<&RefusalReason> {
    match &refusal.cause {
        RefusalCause::Tried(tried) => tried.first().map(|candidate| &candidate.reason),
        RefusalCause::Orphaned { .. } | RefusalCause::Excluded { .. } => None,
    }
}

fn lost_device(trial: &mut Trial<'_>) -> Held {
    for id in ids(trial) {
        let mut world = trial.world(Setup::default())?;
        let instruments = world.instruments.clone();
        // A slab in use would serve without asking the driver, which alone knows of the loss.
        if maps_pages(trial, id) {
            world.grant(&Request {
                mask: DeviceMask::only(id),
                ..Request::new(4 * MIB)
            })?;
        }
        instruments
            .set_faults(FaultPlan::new(vec![Fault::every(FaultKind::Lost).on(id)]))
            .map_err(Failure::error)?;
        world.faulty = true;
        let large = Request {
            mask: DeviceMask::only(id),
            ..Request::new(world.budget(id) / 2)
        };
        let refusal = world.refuse(&large)?;
        let lost = first_reason(&refusal)
            .is_some_and(|reason| matches!(reason, RefusalReason::DeviceLost { .. }));
        hold!(lost, "the device is lost, but the refusal says {refusal}");
        instruments.clear_faults();
        world.faulty = false;
        // Memory that is mapped there already must not be handed out either.
        world.refuse(&Request {
            mask: DeviceMask::only(id),
            ..Request::new(256)
        })?;
        for _ in 0..2 * trial.devices() {
            let owned = world.grant(&Request::new(256))?;
            hold!(
                owned.allocation.device != id,
                "a lost device was handed out"
            );
        }
        trial.close(world)?;
    }
    Ok(())
}
