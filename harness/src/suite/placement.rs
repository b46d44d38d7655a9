//! Which device takes a request: hints, order, orphans, exclusion.

use std::sync::{Arc, Mutex, PoisonError};

use ds4_engine::alloc::{
    Allocator, AllocatorConfig, AllocatorEvent, DeviceBudget, Observer, RefusalCause, Request,
};
use ds4_engine::bytes::{KIB, MIB};
use ds4_engine::device::DeviceMask;

use super::Suite::Placement;
use super::churn::Churn;
use super::rng::Rng;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::Setup;

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Placement,
        name: "requests-stay-on-the-devices-of-their-hint",
        needs: Needs::NOTHING,
        body: requests_stay_on_their_hint,
    },
    Check {
        suite: Placement,
        name: "equal-requests-land-once-on-each-device-before-twice-on-any",
        needs: Needs::TWO,
        body: equal_requests_spread,
    },
    Check {
        suite: Placement,
        name: "the-candidate-under-least-pressure-that-fits-comes-first",
        needs: Needs::TWO,
        body: least_pressure_first,
    },
    Check {
        suite: Placement,
        name: "an-orphaned-hint-is-granted-with-one-warning-per-mask",
        needs: Needs::NOTHING,
        body: orphans_warn_once,
    },
    Check {
        suite: Placement,
        name: "strict-hints-refuse-orphans-and-nothing-else",
        needs: Needs::NOTHING,
        body: strict_hints,
    },
    Check {
        suite: Placement,
        name: "excluded-devices-are-never-used",
        needs: Needs::TWO,
        body: exclusion,
    },
];

fn requests_stay_on_their_hint(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let present = DeviceMask::first(trial.devices()).0;
    // Every hint of up to eight devices; of more, those within two bits of all or none.
    for hint in 0..=present.min(0xFF) {
        world.grant(&Request {
            mask: DeviceMask(hint),
            ..Request::new(4 * KIB)
        })?;
    }
    for bit in DeviceMask(present).iter() {
        let others = DeviceMask(present).without(DeviceMask::only(bit));
        for mask in [
            DeviceMask::only(bit),
            others,
            DeviceMask(!present | DeviceMask::only(bit).0),
        ] {
            world.grant(&Request {
                mask,
                ..Request::new(64 * KIB)
            })?;
        }
    }
    let any = world.grant(&Request {
        mask: DeviceMask::ALL,
        ..Request::new(256)
    })?;
    hold!(
        !any.allocation.orphaned,
        "all 32 bits on fewer devices count as an orphaned hint"
    );
    trial.close(world)
}

fn equal_requests_spread(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let count = trial.devices();
    for bytes in [256, 4 * KIB, MIB] {
        let mut landed = DeviceMask::EMPTY;
        for _ in 0..count {
            let owned = world.grant(&Request::new(bytes))?;
            landed = landed.or(DeviceMask::only(owned.allocation.device));
        }
        hold!(
            landed == DeviceMask::first(count),
            "{count} requests of {bytes} bytes landed on {landed} alone"
        );
        while !world.live.is_empty() {
            world.free(0)?;
        }
    }
    trial.close(world)
}

fn least_pressure_first(trial: &mut Trial<'_>) -> Held {
    for case in 0..trial.cases.div_ceil(4) {
        let mut world = trial.world(Setup::default())?;
        let mut rng = Rng::part(trial.seed, case.into());
        let churn = Churn {
            steps: 200,
            most_bytes: 4 * MIB,
            asks: 60,
        };
        churn.run(&mut world, &mut rng)?;
        // Where every candidate has room, the first in order takes the request.
        for hint in [0, 0b11, 0b101, 0b1100, u32::MAX] {
            let request = Request {
                mask: DeviceMask(hint),
                ..Request::new(256)
            };
            let order = world.order(request.mask);
            if let Ok(owned) = world.request(&request)? {
                let roomy = order
                    .first()
                    .copied()
                    .filter(|first| world.used(*first) + MIB < world.budget(*first) / 2);
                hold!(
                    roomy.is_none_or(|first| first == owned.allocation.device),
                    "{hint:#b} went to {}, its order is {order:?}",
                    owned.allocation.device
                );
            }
        }
        trial.close(world)?;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Warnings(Mutex<Vec<DeviceMask>>);

impl Observer for Warnings {
    fn observe(&self, event: &AllocatorEvent<'_>) {
        if let AllocatorEvent::OrphanedHint { mask, .. } = event {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(*mask);
        }
    }
}

fn orphans_warn_once(trial: &mut Trial<'_>) -> Held {
    let count = trial.devices();
    let Some(first) = DeviceMask::ALL
        .without(DeviceMask::first(count))
        .iter()
        .next()
    else {
        return Err(Failure::Skip(
            "32 devices leave no bit without a device".to_owned(),
        ));
    };
    let orphan = DeviceMask::only(first);
    let target = trial.target.fresh().map_err(Failure::error)?;
    let warnings = Arc::new(Warnings::default());
    let small = DeviceBudget {
        configured_bytes: Some(16 * MIB),
        reserve_bytes: 0,
    };
    let config = AllocatorConfig {
        budgets: vec![small; count],
        observer: Some(warnings.clone()),
        ..AllocatorConfig::default()
    };
    let allocator = Allocator::new(target.backend().clone(), config).map_err(Failure::error)?;
    for _ in 0..3 {
        for mask in [
            orphan,
            DeviceMask(orphan.0 | 1),
            DeviceMask::ALL,
            DeviceMask::EMPTY,
        ] {
            let request = Request {
                mask,
                ..Request::new(4 * KIB)
            };
            let got = allocator
                .allocate(&request)
                .map_err(|error| Failure::Broken(error.to_string()))?;
            hold!(
                got.orphaned == (mask == orphan),
                "mask {mask}: orphaned is {}",
                got.orphaned
            );
            trial.tally.allocations += 1;
        }
    }
    trial.tally.met("orphaned hint");
    let told = warnings
        .0
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    hold!(
        told == [orphan],
        "warnings for {told:?}, one for {orphan} was due"
    );
    let counted = allocator.report().orphaned_hints;
    hold!(counted == 3, "{counted} orphaned hints counted of 3");
    allocator.close().map_err(Failure::error)?;
    Ok(())
}

fn strict_hints(trial: &mut Trial<'_>) -> Held {
    let count = trial.devices();
    let mut world = trial.world(Setup {
        strict: true,
        ..Setup::default()
    })?;
    for bit in DeviceMask::ALL.without(DeviceMask::first(count)).iter() {
        let mask = DeviceMask::only(bit);
        let refusal = world.refuse(&Request {
            mask,
            ..Request::new(256)
        })?;
        hold!(
            refusal.cause
                == RefusalCause::Orphaned {
                    device_count: count
                },
            "an orphaned hint is refused with {refusal:?}"
        );
    }
    for mask in [DeviceMask::EMPTY, DeviceMask::ALL, DeviceMask(1)] {
        world.grant(&Request {
            mask,
            ..Request::new(256)
        })?;
    }
    trial.close(world)
}

fn exclusion(trial: &mut Trial<'_>) -> Held {
    let count = trial.devices();
    for excluded in [
        DeviceMask(1),
        DeviceMask(0b10),
        DeviceMask::first(count - 1),
    ] {
        let mut world = trial.world(Setup {
            excluded,
            ..Setup::default()
        })?;
        for hint in 0..=DeviceMask::first(count.min(6)).0 {
            let request = Request {
                mask: DeviceMask(hint),
                ..Request::new(4 * KIB)
            };
            if let Err(refusal) = world.request(&request)? {
                let redirected = DeviceMask(hint).without(excluded);
                hold!(
                    redirected.is_empty(),
                    "{refusal} although {redirected} is left"
                );
                hold!(
                    matches!(refusal.cause, RefusalCause::Excluded { .. }),
                    "{refusal:?}"
                );
            }
        }
        for id in excluded.iter().filter(|id| id.index() < count) {
            hold!(
                world.allocator.stats(id).is_none(),
                "{id} is excluded and has a pool"
            );
        }
        trial.close(world)?;
    }
    let all = Setup {
        excluded: DeviceMask::first(count),
        ..Setup::default()
    };
    let mut world = trial.world(all)?;
    let refusal = world.refuse(&Request {
        mask: DeviceMask(1),
        ..Request::new(1)
    })?;
    hold!(
        matches!(refusal.cause, RefusalCause::Excluded { .. }),
        "{refusal:?}"
    );
    trial.close(world)
}
