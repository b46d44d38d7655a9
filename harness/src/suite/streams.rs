//! Stream order: who may take freed memory, and when.

use ds4_engine::alloc::{FreeError, RefusalCause, RefusalReason, Request};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};

use super::Suite::Recovery;
use super::churn::fill;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Setup, World};

/// Long enough that nothing of it is done by itself, in simulated nanoseconds.
const LONG_NS: u64 = 1_000_000_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Recovery,
        name: "a-stream-takes-its-own-freed-block-again-at-once",
        needs: Needs::NOTHING,
        body: own_stream,
    },
    Check {
        suite: Recovery,
        name: "another-stream-gets-freed-memory-after-its-work-is-done",
        needs: Needs::SIM,
        body: other_stream,
    },
    Check {
        suite: Recovery,
        name: "a-block-used-on-two-streams-waits-for-both",
        needs: Needs::SIM,
        body: two_streams,
    },
    Check {
        suite: Recovery,
        name: "a-stream-that-a-device-lacks-is-refused-there-alone",
        needs: Needs::NOTHING,
        body: unknown_stream,
    },
];

fn on(id: DeviceId, stream: StreamId, bytes: u64) -> Request {
    Request {
        mask: DeviceMask::only(id),
        stream,
        ..Request::new(bytes)
    }
}

fn new_stream(world: &World, id: DeviceId) -> Result<StreamId, Failure> {
    world
        .allocator
        .create_stream(id)
        .map_err(|error| Failure::Broken(error.to_string()))
}

fn own_stream(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let second = new_stream(&world, id)?;
        for stream in [StreamId::DEFAULT, second, StreamId::DEFAULT] {
            let block = world.grant(&on(id, stream, 3 * MIB))?;
            world.give_back(&block)?;
            let again = world.grant(&on(id, stream, 3 * MIB))?;
            let (was, is) = (block.allocation.offset_bytes, again.allocation.offset_bytes);
            hold!(was == is, "{stream} freed {was} and got {is}");
        }
        destroy(world, trial, id, &[second])?;
    }
    Ok(())
}

fn other_stream(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let sim = world.simulated()?;
        let second = new_stream(&world, id)?;
        let half = world.budget(id) / 2 - 2 * MIB;
        let block = world.grant(&on(id, StreamId::DEFAULT, half))?;
        sim.busy(id, StreamId::DEFAULT, LONG_NS)
            .map_err(Failure::error)?;
        world.give_back(&block)?;
        // Room is left: the second stream goes there and does not wait.
        let before = sim.now_ns();
        let beside = world.grant(&on(id, second, MIB))?;
        hold!(
            sim.now_ns() < before + LONG_NS / 2,
            "the second stream waited although room is left"
        );
        hold!(
            beside.allocation.offset_bytes >= half
                || beside.allocation.offset_bytes + MIB <= block.allocation.offset_bytes,
            "the second stream got memory that the first still uses"
        );
        // No room is left: it waits for the first stream.
        fill(&mut world, id, MIB)?;
        let sorted = world.live.clone();
        sim.busy(id, StreamId::DEFAULT, LONG_NS)
            .map_err(Failure::error)?;
        for owned in sorted
            .iter()
            .filter(|owned| owned.stream == StreamId::DEFAULT)
        {
            world.give_back(owned)?;
        }
        let before = sim.now_ns();
        world.grant(&on(id, second, half))?;
        hold!(
            sim.now_ns() >= before + LONG_NS / 2,
            "memory was taken over without waiting for its stream"
        );
        destroy(world, trial, id, &[second])?;
    }
    Ok(())
}

fn two_streams(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let sim = world.simulated()?;
        let second = new_stream(&world, id)?;
        let block = world.grant(&on(id, StreamId::DEFAULT, 4 * MIB))?;
        let (handle, address) = (block.allocation.handle, block.allocation.address);
        world
            .target
            .backend()
            .synchronize(id, StreamId::DEFAULT)
            .map_err(Failure::error)?;
        world
            .allocator
            .record_use(handle, second)
            .map_err(|e| Failure::Broken(e.to_string()))?;
        sim.touch(id, second, address, 4 * MIB, LONG_NS)
            .map_err(Failure::error)?;
        world.give_back(&block)?;
        world
            .tally
            .met("free while a further stream uses the block");
        // Even its own stream has to leave it alone until the second one is done.
        let next = world.grant(&on(id, StreamId::DEFAULT, 4 * MIB))?;
        let offset = next.allocation.offset_bytes;
        hold!(
            offset != block.allocation.offset_bytes,
            "a block in use on another stream was handed out"
        );
        fill(&mut world, id, MIB)?;
        destroy(world, trial, id, &[second])?;
    }
    Ok(())
}

fn unknown_stream(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    for id in DeviceMask::first(trial.devices()).iter() {
        let stream = StreamId(77);
        let refusal = world.refuse(&on(id, stream, 256))?;
        let right = matches!(&refusal.cause, RefusalCause::Tried(tried)
            if tried.iter().all(|c| c.reason == RefusalReason::UnknownStream { stream }));
        hold!(right, "{refusal}");
        let block = world
            .grant(&on(id, StreamId::DEFAULT, 256))?
            .allocation
            .handle;
        let used = world.allocator.record_use(block, stream);
        hold!(
            matches!(used, Err(FreeError::Backend(_))),
            "use on a stream that is not there: {used:?}"
        );
    }
    trial.close(world)
}

/// Closes a world and removes the streams that the check made.
fn destroy(world: World, trial: &mut Trial<'_>, id: DeviceId, streams: &[StreamId]) -> Held {
    let backend = world.target.backend().clone();
    trial.close(world)?;
    for stream in streams {
        backend
            .destroy_stream(id, *stream)
            .map_err(Failure::error)?;
    }
    Ok(())
}
