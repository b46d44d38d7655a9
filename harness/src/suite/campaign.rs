//! Running a history: under its faults, then without, checked at every step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::alloc::{Allocation, FreeError, Handle, Request};
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_sim::{DeviceView, Instruments};

use super::draw::STREAMS;
use super::script::{Op, Script};
use super::trial::{Failure, Held, Tally, hold};
use super::world::{Setup, World};
use crate::target::Target;

/// How long a use on a further stream takes where time is virtual, in nanoseconds.
const FURTHER_USE_NS: u64 = 50_000;

/// The machine of a script: a simulated one, or as much of `real` as makes the same.
fn machine(script: &Script, real: Option<&Target>) -> Result<Target, Failure> {
    let views = || {
        script.devices.iter().map(|device| DeviceView {
            pages: device.pages,
            capacity_bytes: Some(device.capacity_bytes),
            peers: device.peers,
        })
    };
    match real {
        Some(real) => real
            .with_views(views().collect())
            .ok_or_else(|| Failure::error("the devices cannot be shown in part")),
        None => Target::simulated(script.config()).map_err(Failure::error),
    }
}

fn ids(count: usize) -> impl Iterator<Item = DeviceId> {
    (0..count).filter_map(DeviceId::new)
}

/// How a script's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// Everything holds.
    Holds,
    /// What does not hold, as a sentence.
    Broken(String),
    /// Why it could not be run.
    Failed(String),
    /// It was ended early.
    Stopped,
}

/// Runs a script: its operations under its faults, then what must work without them.
#[must_use]
pub fn replay(script: &Script, stop: &AtomicBool) -> Replayed {
    match play_safely(script, None, stop) {
        Ok(_) => Replayed::Holds,
        Err(Failure::Broken(why) | Failure::Shown(why, _)) => Replayed::Broken(why),
        Err(Failure::Skip(why) | Failure::Error(why)) => Replayed::Failed(why),
        Err(Failure::Stopped) => Replayed::Stopped,
    }
}

/// As [`play`], with a panic as a failure, so that it can be shrunk like any other.
pub(super) fn play_safely(
    script: &Script,
    real: Option<&Target>,
    stop: &AtomicBool,
) -> Result<Tally, Failure> {
    catch_unwind(AssertUnwindSafe(|| play(script, real, stop))).unwrap_or_else(|payload| {
        Err(Failure::Broken(format!(
            "panicked: {}",
            panic_text(&*payload)
        )))
    })
}

/// The message of a panic.
pub(super) fn panic_text(payload: &(dyn std::any::Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

/// Runs a script on a simulated machine, or on the first devices of `real`.
pub(super) fn play(
    script: &Script,
    real: Option<&Target>,
    stop: &AtomicBool,
) -> Result<Tally, Failure> {
    let target = machine(script, real)?;
    let world = World::open(target, Setup::default())?;
    let instruments = world.instruments.clone();
    let mut player = Player {
        world,
        instruments,
        freed: None,
        refused: None,
    };
    let plan = script.plan().map_err(Failure::error)?;
    player.world.faulty = !plan.faults.is_empty();
    player
        .instruments
        .set_faults(plan)
        .map_err(Failure::error)?;
    for (number, op) in script.ops.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        let done = player.step(*op).and_then(|()| player.world.check());
        done.map_err(|failure| at(number, *op, failure))?;
    }
    player.calm_down();
    player.everything_that_fits_is_granted()?;
    player.world.close()
}

fn at(number: usize, op: Op, failure: Failure) -> Failure {
    match failure {
        Failure::Broken(why) => Failure::Broken(format!("operation {number} ({op:?}): {why}")),
        other @ (Failure::Shown(..) | Failure::Skip(_) | Failure::Error(_) | Failure::Stopped) => {
            other
        }
    }
}

struct Player {
    world: World,
    instruments: Arc<dyn Instruments>,
    freed: Option<Handle>,
    refused: Option<Request>,
}

impl Player {
    fn step(&mut self, op: Op) -> Held {
        match op {
            Op::Alloc { .. } => self.allocate(op),
            Op::Free { block } => self.free(block),
            Op::FreeAgain => self.free_again(),
            Op::Use { block, stream } => self.use_further(block, stream),
            Op::Copy { from, to, bytes } => self.copy(from, to, bytes),
            Op::Stream { device } => self.stream(device),
            Op::Trim => self.world.trim(),
            Op::Sync { device } => self.synchronize(device),
            Op::Take { device, bytes } => {
                if let Some(device) = self.device(device) {
                    self.instruments.take_memory(device, bytes);
                }
                Ok(())
            }
            Op::Give { device } => {
                if let Some(device) = self.device(device) {
                    self.instruments.give_memory(device, u64::MAX);
                }
                Ok(())
            }
            Op::Relax => self.relax(),
        }
    }

    fn device(&self, number: u64) -> Option<DeviceId> {
        DeviceId::new(usize::try_from(number).ok()?)
            .filter(|id| id.index() < self.world.device_count())
    }

    fn block(&self, number: u64) -> Option<usize> {
        let place = number.checked_rem(self.world.live.len() as u64)?;
        usize::try_from(place).ok()
    }

    fn allocate(&mut self, op: Op) -> Held {
        let Some(request) = op.request() else {
            return Ok(());
        };
        if self.world.request(&request)?.is_err() {
            self.refused = Some(request);
        }
        Ok(())
    }

    fn free(&mut self, block: u64) -> Held {
        let Some(index) = self.block(block) else {
            return Ok(());
        };
        let handle = self
            .world
            .live
            .get(index)
            .map(|owned| owned.allocation.handle);
        if self.world.free(index)? {
            self.freed = handle;
            if let Some(request) = self.refused.take()
                && self.world.request(&request)?.is_ok()
            {
                self.world.tally.met("refusal, then success after a free");
            }
        }
        Ok(())
    }

    fn free_again(&mut self) -> Held {
        let Some(handle) = self.freed else {
            return Ok(());
        };
        let hash = self.world.allocator.state_hash();
        let again = self.world.allocator.free(handle);
        let rejected = matches!(again, Err(FreeError::DoubleFree | FreeError::StaleHandle));
        hold!(rejected, "a second free says {again:?}");
        hold!(
            hash == self.world.allocator.state_hash(),
            "a second free changed the state"
        );
        self.world.tally.rejected += 1;
        Ok(())
    }

    fn use_further(&mut self, block: u64, stream: u32) -> Held {
        let Some(owned) = self
            .block(block)
            .and_then(|index| self.world.live.get(index))
            .copied()
        else {
            return Ok(());
        };
        let Allocation {
            handle,
            device,
            address,
            bytes,
            ..
        } = owned.allocation;
        let stream = StreamId(stream);
        if stream == owned.stream || self.world.allocator.record_use(handle, stream).is_err() {
            return Ok(());
        }
        // The further stream starts after the block's own, as a program has to arrange.
        let backend = self.world.target.backend().clone();
        let Ok(event) = backend.record_event(device, owned.stream) else {
            return Ok(());
        };
        let waits = backend.stream_wait_event(device, stream, device, event);
        self.world.remove_event(device, event);
        if waits.is_err()
            || self
                .instruments
                .touch(device, stream, address, bytes, FURTHER_USE_NS)
                .is_err()
        {
            return Ok(());
        }
        // Nobody may touch it on its own stream any more: its life ends with a free.
        let index = self
            .world
            .live
            .iter()
            .position(|live| live.allocation.handle == handle);
        if self.world.free(index.unwrap_or(usize::MAX))? {
            self.freed = Some(handle);
            self.world
                .tally
                .met("free while a further stream uses the block");
        } else {
            self.world.wait_later(device, stream);
        }
        Ok(())
    }

    fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Held {
        let pick = |number| {
            self.block(number)
                .and_then(|index| self.world.live.get(index))
                .copied()
        };
        let (Some(from), Some(to)) = (pick(from), pick(to)) else {
            return Ok(());
        };
        if from.allocation.handle == to.allocation.handle {
            return Ok(());
        }
        let bytes = bytes.min(from.allocation.bytes).min(to.allocation.bytes);
        self.world
            .copy(from.allocation.handle, to.allocation.handle, bytes)
            .map(|_| ())
    }

    fn stream(&mut self, device: u64) -> Held {
        let Some(device) = self.device(device) else {
            return Ok(());
        };
        if self.instruments.streams_and_events(device).0 as u64 > STREAMS {
            return Ok(());
        }
        match self.world.allocator.create_stream(device) {
            Err(error) if !self.world.faulty => Err(Failure::Broken(format!("no stream: {error}"))),
            _ => Ok(()),
        }
    }

    fn synchronize(&mut self, device: u64) -> Held {
        let Some(device) = self.device(device) else {
            return Ok(());
        };
        match self.world.allocator.synchronize(device) {
            Err(error) if !self.world.faulty => {
                Err(Failure::Broken(format!("cannot wait: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn relax(&mut self) -> Held {
        let Some(request) = self.refused.take() else {
            return Ok(());
        };
        let relaxed = Request {
            mask: DeviceMask::EMPTY,
            stream: StreamId::DEFAULT,
            ..request
        };
        if self.world.request(&relaxed)?.is_ok() {
            self.world
                .tally
                .met("refusal, then success on a relaxed mask");
        }
        Ok(())
    }

    /// Ends the faults; what is lost stays lost.
    fn calm_down(&mut self) {
        let fired: u64 = self
            .instruments
            .clear_faults()
            .iter()
            .map(|count| count.fired)
            .sum();
        self.world.tally.faults += fired;
        self.instruments.restore_memory();
        self.world.faulty = false;
        for id in ids(self.world.device_count()) {
            if self.world.target.backend().memory_info(id).is_err() {
                self.world.lost = self.world.lost.or(DeviceMask::only(id));
            }
        }
    }

    /// The world checks each refusal against its model, so asking is enough.
    fn everything_that_fits_is_granted(&mut self) -> Held {
        for id in ids(self.world.device_count()) {
            for shift in [0, 1, 2, 4, 8, 16] {
                let bytes = (self.world.budget(id) >> shift).max(1);
                let request = Request {
                    mask: DeviceMask::only(id),
                    ..Request::new(bytes)
                };
                self.world.request(&request)?.ok();
            }
        }
        while !self.world.live.is_empty() {
            hold!(
                self.world.free(0)?,
                "a block cannot be freed without faults"
            );
        }
        for id in ids(self.world.device_count())
            .filter(|id| !self.world.lost.contains(*id))
            .collect::<Vec<_>>()
        {
            let all = Request {
                mask: DeviceMask::only(id),
                ..Request::new(self.world.budget(id) / 2)
            };
            self.world.grant(&all)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ds4_engine::bytes::MIB;
    use ds4_sim::{SimConfig, SimDevice};

    use super::super::draw::draw;
    use super::*;
    use crate::target::BackendKind;

    /// The same history on the default stream alone, where no timing decides.
    fn on_one_stream(mut script: Script) -> Script {
        script
            .ops
            .retain(|op| !matches!(op, Op::Stream { .. } | Op::Use { .. }));
        for op in &mut script.ops {
            if let Op::Alloc { stream, .. } = op {
                *stream = 0;
            }
        }
        script
    }

    #[test]
    fn a_history_goes_the_same_way_where_the_devices_have_no_instruments_of_their_own() {
        let device = SimDevice {
            granularity_bytes: 64 << 10,
            ..SimDevice::new(256 * MIB)
        };
        let config = SimConfig::new("lasting", vec![device; 5]);
        let inner = Arc::new(ds4_sim::SimBackend::new(config).unwrap());
        let lasting = Target::lasting(BackendKind::Sim, inner.clone());
        let stop = AtomicBool::new(false);
        for case in 0_u32..60 {
            let script = on_one_stream(draw(5, case.into(), 1 + case as usize % 5, case % 4 > 0));
            let simulated = play(&script, None, &stop).unwrap();
            let wrapped = play(&script, Some(&lasting), &stop).unwrap();
            assert_eq!(wrapped.sentence(), simulated.sentence(), "{case}");
            assert_eq!(wrapped.hash, simulated.hash, "{case}");
            assert_eq!(wrapped.sometimes, simulated.sometimes, "{case}");
        }
        inner.ledger().check_shutdown();
        assert_eq!(inner.ledger().findings(), []);
    }
}
