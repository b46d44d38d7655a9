//! Random requests and frees on any backend, for checks that need a machine in use.

use ds4_engine::alloc::{Lifetime, Request};
use ds4_engine::device::{DeviceId, DeviceMask};
use ds4_engine::hash::StateHash;

use super::rng::Rng;
use super::trial::{Failure, Held};
use super::world::World;

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Churn {
    pub(super) steps: u64,
    /// The largest size, in bytes.
    pub(super) most_bytes: u64,
    /// Out of 100 steps, so many ask.
    pub(super) asks: u64,
}

impl Churn {
    /// Does the steps; returns a hash of where everything landed.
    pub(super) fn run(self, world: &mut World, rng: &mut Rng) -> Result<u64, Failure> {
        let mut hash = StateHash::default();
        for _ in 0..self.steps {
            if world.live.is_empty() || rng.chance(self.asks) {
                let request = self.request(world, rng);
                match world.request(&request)? {
                    Ok(owned) => {
                        hash.word(owned.allocation.device.index() as u64);
                        hash.word(owned.allocation.offset_bytes);
                    }
                    Err(refusal) => {
                        hash.word(refusal.bytes);
                    }
                }
            } else {
                let index = usize::try_from(rng.below(world.live.len() as u64)).unwrap_or(0);
                world.free(index)?;
            }
        }
        world.check()?;
        Ok(hash.finish())
    }

    fn request(self, world: &World, rng: &mut Rng) -> Request {
        let count = world.device_count();
        let mask = match rng.below(4) {
            0 | 1 => DeviceMask::EMPTY,
            2 => DeviceId::new(usize::try_from(rng.below(count as u64)).unwrap_or(0))
                .map_or(DeviceMask::EMPTY, DeviceMask::only),
            _ => DeviceMask(u32::try_from(rng.next() >> 32).unwrap_or(0)),
        };
        Request {
            mask,
            align_bytes: if rng.chance(20) {
                1 << rng.below(22)
            } else {
                256
            },
            lifetime: if rng.chance(10) {
                Lifetime::Long
            } else {
                Lifetime::Transient
            },
            ..Request::new(rng.size(self.most_bytes))
        }
    }
}

/// Fills a device with blocks of `bytes` until it refuses.
pub(super) fn fill(world: &mut World, device: DeviceId, bytes: u64) -> Held {
    let request = Request {
        mask: DeviceMask::only(device),
        ..Request::new(bytes)
    };
    let most = world.budget(device) / bytes.max(1) + 1;
    for _ in 0..most {
        if world.request(&request)?.is_err() {
            return Ok(());
        }
    }
    Err(Failure::Broken(format!(
        "{device} granted more than its budget holds"
    )))
}
