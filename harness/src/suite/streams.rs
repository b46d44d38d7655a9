//! Stream order: who may take freed memory, and when.

use ds4_engine::alloc::{FreeError, RefusalCause, RefusalReason, Request};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, StreamId};
use ds4_kernels::{Launch, Pattern, Tally};
use ds4_sim::Instruments;

use super::Suite::Recovery;
use super::churn::fill;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Owned, Setup, World};

/// Long enough that nothing of it is done by itself, in simulated nanoseconds.
const LONG_NS: u64 = 1_000_000_000;
/// So many kernels, each over most of a budget, keep a real device busy while the host goes on.
const KERNELS: u32 = 400;
/// So often more of them are tried on a device that is done before the host can ask.
const ROUNDS: u32 = 8;
/// What the kernels of the stream that lets go write.
const OLD: u8 = 0x5A;
/// What the stream that takes over writes.
const NEW: Pattern = Pattern::Random { seed: 13 };

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
        name: "pending-work-never-overwrites-memory-that-another-stream-got",
        needs: Needs::NOTHING,
        body: handed_over,
    },
    Check {
        suite: Recovery,
        name: "pending-work-of-a-further-stream-never-overwrites-the-next-block",
        needs: Needs::NOTHING,
        body: handed_over_after_further_use,
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
        trial.close(world)?;
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
        trial.close(world)?;
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
        trial.close(world)?;
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
            used == Err(FreeError::UnknownStream { device: id, stream }),
            "use on a stream that is not there: {used:?}"
        );
    }
    trial.close(world)
}

/// Fills a device but for one large block, which `stream` is to use; the small block is for results.
fn full_device(world: &mut World, id: DeviceId, stream: StreamId) -> Result<[Owned; 2], Failure> {
    let results = world.grant(&on(id, stream, 256))?;
    let large = world.budget(id) / 4 * 3;
    let block = world.grant(&on(id, StreamId::DEFAULT, large))?;
    fill(world, id, MIB)?;
    Ok([block, results])
}

/// Gives a stream work that overwrites a block and is not done when this returns.
fn keep_busy(world: &World, stream: StreamId, block: &Owned) -> Held {
    let backend = world.target.backend();
    let allocation = block.allocation;
    let id = allocation.device;
    let overwrite = Launch::Fill {
        to: allocation.address.0,
        bytes: allocation.bytes,
        value: OLD,
    };
    for _ in 0..ROUNDS {
        for _ in 0..KERNELS {
            backend
                .launch(id, stream, &overwrite)
                .map_err(Failure::error)?;
        }
        let event = backend.record_event(id, stream).map_err(Failure::error)?;
        let done = backend.event_done(id, event);
        world.remove_event(id, event);
        if !done.map_err(Failure::error)? {
            return Ok(());
        }
    }
    Err(Failure::Skip(format!(
        "{id} is done with its work before the host can ask"
    )))
}

/// Takes memory over on `stream` while `before` still works on it, and looks for the bytes of
/// `before` in it when all work is done.
fn take_over(world: &mut World, stream: StreamId, before: StreamId, results: &Owned) -> Held {
    let backend = world.target.backend().clone();
    let results = results.allocation;
    let id = results.device;
    let most = world.budget(id) / 4;
    let block = world
        .grant(&on(id, stream, most.clamp(256, 2 * MIB)))?
        .allocation;
    let words = block.bytes / 8;
    let write = Launch::WritePattern {
        to: block.address.0,
        words,
        first_position: 0,
        pattern: NEW,
    };
    let check = Launch::CheckPattern {
        from: block.address.0,
        words,
        first_position: 0,
        pattern: NEW,
        result: results.address.0,
    };
    let clean = [Tally::CLEAN.least_position, Tally::CLEAN.wrong_words].map(u64::to_le_bytes);
    let mut found = [[0; 8]; 2];
    let mut compare = || {
        backend.launch(id, stream, &write)?;
        backend.synchronize(id, before)?;
        backend.synchronize(id, stream)?;
        backend.write(id, results.address, clean.as_flattened())?;
        backend.launch(id, stream, &check)?;
        backend.synchronize(id, stream)?;
        backend.read(id, results.address, found.as_flattened_mut())
    };
    compare().map_err(Failure::error)?;
    let [position, wrong] = found.map(u64::from_le_bytes);
    hold!(
        found == clean,
        "work of {before} overwrote {wrong} words of what {stream} got on {id}, the first at {position}"
    );
    Ok(())
}

fn handed_over(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let second = new_stream(&world, id)?;
        let [block, results] = full_device(&mut world, id, second)?;
        keep_busy(&world, StreamId::DEFAULT, &block)?;
        world.give_back(&block)?;
        take_over(&mut world, second, StreamId::DEFAULT, &results)?;
        trial.close(world)?;
    }
    Ok(())
}

fn handed_over_after_further_use(trial: &mut Trial<'_>) -> Held {
    for id in DeviceMask::first(trial.devices()).iter() {
        let mut world = trial.world(Setup::default())?;
        let second = new_stream(&world, id)?;
        let [block, results] = full_device(&mut world, id, StreamId::DEFAULT)?;
        world
            .target
            .backend()
            .synchronize(id, StreamId::DEFAULT)
            .map_err(Failure::error)?;
        world
            .allocator
            .record_use(block.allocation.handle, second)
            .map_err(|error| Failure::Broken(error.to_string()))?;
        keep_busy(&world, second, &block)?;
        world.give_back(&block)?;
        take_over(&mut world, StreamId::DEFAULT, second, &results)?;
        trial.close(world)?;
    }
    Ok(())
}
