//! Who owns a block, where it stays, and how its bytes get elsewhere.

use ds4_engine::alloc::{AllocError, CopyError, CopyPath, FreeError, MAX_ALIGN_BYTES, Request};
use ds4_engine::bytes::{KIB, MAX_BYTES, MIB};
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, PeerAccess};

use super::Suite::Placement;
use super::trial::{Check, Failure, Held, Needs, Trial, hold};
use super::world::{Owned, Setup, World};

pub(super) const CHECKS: &[Check] = &[
    Check {
        suite: Placement,
        name: "every-wrong-free-is-an-error-of-its-own-and-changes-nothing",
        needs: Needs::NOTHING,
        body: wrong_frees,
    },
    Check {
        suite: Placement,
        name: "sizes-and-alignments-out-of-range-are-errors",
        needs: Needs::NOTHING,
        body: arithmetic,
    },
    Check {
        suite: Placement,
        name: "freed-bytes-return-to-the-device-they-came-from",
        needs: Needs::NOTHING,
        body: frees_return,
    },
    Check {
        suite: Placement,
        name: "copies-deliver-their-bytes-over-the-path-they-report",
        needs: Needs::NOTHING,
        body: copies,
    },
    Check {
        suite: Placement,
        name: "copies-out-of-bounds-or-onto-themselves-are-refused",
        needs: Needs::NOTHING,
        body: wrong_copies,
    },
];

fn wrong_frees(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let mut other = trial.world(Setup::default())?;
    let live = world.grant(&Request::new(64 * KIB))?.allocation;
    let gone = world.grant(&Request {
        mask: DeviceMask::only(live.device),
        ..Request::new(64 * KIB)
    })?;
    let foreign = other.grant(&Request::new(64 * KIB))?.allocation;
    world.give_back(&gone)?;
    let handle = gone.allocation.handle;
    world.reject("a double free", &FreeError::DoubleFree, |a| a.free(handle))?;
    let theirs = foreign.handle;
    world.reject(
        "another allocator's handle",
        &FreeError::OtherAllocator,
        |a| a.free(theirs),
    )?;
    world.reject("null", &FreeError::Null, |a| {
        a.free_address(DeviceAddress(0))
    })?;
    let outside = DeviceAddress(0x1000);
    world.reject(
        "a foreign address",
        &FreeError::Foreign { address: outside },
        |a| a.free_address(outside),
    )?;
    for distance in [1, 255, 256, 64 * KIB - 1] {
        let address = DeviceAddress(live.address.0 + distance);
        let inside = FreeError::Interior {
            address,
            start: live.address,
        };
        world.reject("an interior address", &inside, |a| a.free_address(address))?;
    }
    let freed = gone.allocation.address;
    world.reject("a freed address", &FreeError::DoubleFree, |a| {
        a.free_address(freed)
    })?;
    let again = world.grant(&Request {
        mask: DeviceMask::only(live.device),
        ..Request::new(64 * KIB)
    })?;
    if again.allocation.offset_bytes == gone.allocation.offset_bytes {
        world.reject("a stale handle", &FreeError::StaleHandle, |a| {
            a.free(handle)
        })?;
    }
    trial.close(other)?;
    trial.close(world)
}

fn arithmetic(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    world.reject("no bytes", &AllocError::ZeroSize, |a| {
        a.allocate(&Request::new(0))
    })?;
    for bytes in [
        MAX_BYTES + 1,
        1 << 63,
        u64::MAX - 511,
        u64::MAX - 255,
        u64::MAX,
        18_446_744_073_708_433_663,
    ] {
        let large = AllocError::TooLarge { bytes };
        world.reject("a size above i64::MAX", &large, |a| {
            a.allocate(&Request::new(bytes))
        })?;
    }
    for align_bytes in [0, 3, 255, 257, MAX_ALIGN_BYTES * 2, u64::MAX, (1 << 63) + 1] {
        let request = Request {
            align_bytes,
            ..Request::new(1)
        };
        let bad = AllocError::BadAlignment { align_bytes };
        world.reject("a bad alignment", &bad, |a| a.allocate(&request))?;
    }
    for bytes in [MAX_BYTES, MAX_BYTES - 255, 1 << 62, 1 << 40, (1 << 40) - 1] {
        for align_bytes in [1, 256, MAX_ALIGN_BYTES] {
            world.refuse(&Request {
                align_bytes,
                ..Request::new(bytes)
            })?;
        }
    }
    let mut align_bytes = 1;
    while align_bytes <= MAX_ALIGN_BYTES {
        for bytes in [1, 255, 256, 257, 1000] {
            world.grant(&Request {
                align_bytes,
                ..Request::new(bytes)
            })?;
        }
        align_bytes *= 2;
    }
    trial.close(world)
}

fn frees_return(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    for round in 0..3 {
        let blocks: Vec<Owned> = (0..4 * trial.devices())
            .map(|_| world.grant(&Request::new(MIB / (round + 1))))
            .collect::<Result<_, _>>()?;
        for (number, owned) in blocks.iter().enumerate() {
            let device = owned.allocation.device;
            let before = world.used(device);
            if number % 2 == 0 {
                world.give_back(owned)?;
            } else {
                let address = owned.allocation.address;
                let found = world.allocator.handle_at(address);
                hold!(
                    found == Ok(owned.allocation.handle),
                    "{address} belongs to {found:?}"
                );
                world.give_back(owned)?;
            }
            let used = world
                .allocator
                .stats(device)
                .map_or(0, |stats| stats.used_bytes);
            hold!(
                used + owned.allocation.reserved_bytes == before,
                "{device} has {used} bytes used of {before}"
            );
        }
    }
    trial.close(world)
}

fn pattern(bytes: usize, tag: u8) -> Vec<u8> {
    (0..bytes)
        .map(|at| tag ^ u8::try_from(at % 251).unwrap_or(0))
        .collect()
}

fn copies(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let ids: Vec<DeviceId> = DeviceMask::first(trial.devices()).iter().collect();
    let on = |id: &DeviceId| Request {
        mask: DeviceMask::only(*id),
        ..Request::new(256 * KIB + 13)
    };
    for (number, from) in ids.iter().enumerate() {
        for to in &ids {
            let source = world.grant(&on(from))?;
            let target = world.grant(&on(to))?;
            copy_and_compare(&mut world, &source, &target, number)?;
            world.give_back(&source)?;
            world.give_back(&target)?;
        }
    }
    trial.close(world)
}

fn copy_and_compare(world: &mut World, source: &Owned, target: &Owned, number: usize) -> Held {
    let backend = world.target.backend().clone();
    let (from, to) = (source.allocation, target.allocation);
    let sent = pattern(256 * 1024 + 13, u8::try_from(number % 256).unwrap_or(0));
    // The first use of both blocks runs on their streams; the host's access has to wait for it.
    for allocation in [&from, &to] {
        backend
            .synchronize(allocation.device, source.stream)
            .map_err(Failure::error)?;
    }
    backend
        .write(from.device, from.address, &sent)
        .map_err(Failure::error)?;
    let expected = if from.device == to.device {
        CopyPath::SameDevice
    } else {
        match backend
            .peer_access(from.device, to.device)
            .map_err(Failure::error)?
        {
            PeerAccess::Direct => CopyPath::Peer,
            PeerAccess::Absent | PeerAccess::Bounce | PeerAccess::Broken => CopyPath::HostBounce,
        }
    };
    let report = world.copy(from.handle, to.handle, from.bytes)?;
    let path = report.map(|report| report.path);
    hold!(
        path == Some(expected),
        "{} to {} went by {path:?}, not {expected:?}",
        from.device,
        to.device
    );
    backend
        .synchronize(to.device, target.stream)
        .map_err(Failure::error)?;
    let mut arrived = vec![0; sent.len()];
    backend
        .read(to.device, to.address, &mut arrived)
        .map_err(Failure::error)?;
    hold!(
        arrived == sent,
        "a copy from {} to {} by {expected} changed bytes",
        from.device,
        to.device
    );
    let end = (from.address, from.offset_bytes);
    let still = world.allocator.handle_at(end.0);
    hold!(still == Ok(from.handle), "the source moved");
    Ok(())
}

fn wrong_copies(trial: &mut Trial<'_>) -> Held {
    let mut world = trial.world(Setup::default())?;
    let one = world.grant(&Request::new(1000))?;
    let two = world.grant(&Request::new(2000))?;
    let (a, b) = (one.allocation.handle, two.allocation.handle);
    for (offset_bytes, bytes, block_bytes) in
        [(0, 1001, 1000), (1000, 1, 1000), (u64::MAX, 2, 1000)]
    {
        let outside = CopyError::OutOfBounds {
            offset_bytes,
            bytes,
            block_bytes,
        };
        world.reject("a copy out of bounds", &outside, |x| {
            x.copy((a, offset_bytes), (b, 0), bytes)
        })?;
    }
    world.reject("an overlapping copy", &CopyError::Overlap, |x| {
        x.copy((a, 0), (a, 10), 100)
    })?;
    world.reject("a copy onto itself", &CopyError::Overlap, |x| {
        x.copy((a, 0), (a, 0), 100)
    })?;
    world.give_back(&one)?;
    let gone = CopyError::NotLive(FreeError::DoubleFree);
    world.reject("a copy from a freed block", &gone, |x| {
        x.copy((a, 0), (b, 0), 1)
    })?;
    world.reject("a copy to a freed block", &gone, |x| {
        x.copy((b, 0), (a, 0), 1)
    })?;
    trial.close(world)
}
