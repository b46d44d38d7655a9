//! Equal operations give equal results, whatever the addresses.

use ds4_engine::bytes::MIB;
use ds4_engine::device::DeviceMask;

use super::Suite::Determinism;
use super::campaign::play;
use super::churn::Churn;
use super::draw::draw;
use super::rng::Rng;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Setup, World};
use crate::target::Target;

const CHURN: Churn = Churn {
    steps: 400,
    most_bytes: 8 * MIB,
    asks: 60,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Determinism,
        name: "one-seed-gives-the-same-devices-and-offsets-twice",
        needs: Needs::NOTHING,
        body: twice,
    },
    Check {
        suite: Determinism,
        name: "addresses-decide-nothing",
        needs: Needs::NOTHING.spare(),
        body: other_addresses,
    },
    Check {
        suite: Determinism,
        name: "histories-with-faults-repeat",
        needs: Needs::SIM_OWN,
        body: faulty_twice,
    },
];

fn twice(trial: &mut Trial<'_>) -> Held {
    for case in 0..trial.cases.div_ceil(8) {
        let mut seen = None;
        for _ in 0..2 {
            let mut world = trial.world(Setup::default())?;
            let landed = CHURN.run(&mut world, &mut Rng::part(trial.seed, case.into()))?;
            let state = (landed, world.allocator.state_hash());
            hold!(
                seen.is_none_or(|seen| seen == state),
                "history {case} went two ways"
            );
            seen = Some(state);
            trial.close(world)?;
        }
    }
    Ok(())
}

/// Takes odd pieces of memory first, so that the allocator's lie at other addresses.
fn other_addresses(trial: &mut Trial<'_>) -> Held {
    for case in 0..trial.cases.div_ceil(8) {
        let mut seen = None;
        for shift in [0, 1, 3] {
            let target = trial.target.instrumented().map_err(Failure::error)?;
            let taken = occupy(&target, shift)?;
            let mut world = World::open(target.clone(), Setup::default())?;
            let landed = CHURN.run(&mut world, &mut Rng::part(trial.seed, case.into()))?;
            let state = (landed, world.allocator.state_hash());
            hold!(
                seen.is_none_or(|seen| seen == state),
                "history {case} depends on addresses"
            );
            seen = Some(state);
            for (device, address) in taken {
                target
                    .backend()
                    .free(device, address)
                    .map_err(Failure::error)?;
            }
            trial.close(world)?;
        }
    }
    Ok(())
}

type Taken = Vec<(
    ds4_engine::device::DeviceId,
    ds4_engine::device::DeviceAddress,
)>;

fn occupy(target: &Target, pieces: u64) -> Result<Taken, Failure> {
    let mut taken = Vec::new();
    for id in DeviceMask::first(target.backend().devices().len()).iter() {
        for piece in 0..pieces {
            let bytes = (piece + 1) * 100_000;
            taken.push((
                id,
                target
                    .backend()
                    .allocate(id, bytes)
                    .map_err(Failure::error)?,
            ));
        }
    }
    Ok(taken)
}

fn faulty_twice(trial: &mut Trial<'_>) -> Held {
    for case in 0..trial.cases.div_ceil(8) {
        trial.go_on()?;
        let script = draw(trial.seed, 0x200 + u64::from(case), 3, true);
        let once = play(&script, None, trial.stop)?;
        let again = play(&script, None, trial.stop)?;
        let same = once.hash == again.hash
            && once.sometimes == again.sometimes
            && once.faults == again.faults;
        hold!(same, "history {case} with faults went two ways");
        trial.tally.add(&once);
        trial.tally.add(&again);
    }
    Ok(())
}
