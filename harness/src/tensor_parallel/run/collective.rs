//! Gates whose sum a collective library makes on the rank's device.

use std::sync::Arc;

use ds4_engine::alloc::{Allocation, Allocator, Request};
use ds4_engine::backend::driver::Vendor;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask};
use ds4_engine::nccl::{Library, Seat};
use ds4_engine::tp::schedule::Gate;
use ds4_engine::tp::slab::ALIGN_BYTES;
use ds4_engine::transport::OnDevice;

use super::super::plan::Plan;
use super::{End, Worker};
use crate::exit::Exit;
use crate::machine::Machine;
use crate::output::Failure;
use crate::stopwatch::Stopwatch;
use crate::target::{BackendKind, Target};

/// Loads the library that sums on the devices of a machine.
///
/// # Errors
/// [`Failure`]: simulated devices, which no library knows, or no library.
pub(in super::super) fn load(machine: &Machine) -> Result<Arc<Library>, Failure> {
    let vendor = match machine.target.kind() {
        BackendKind::Cuda => Vendor::Cuda,
        BackendKind::Hip => Vendor::Hip,
        BackendKind::Sim => {
            return Err(Failure::usage(
                "--transport nccl sums on the devices of a driver, and the backend is sim: add \
                 --backend cuda or hip (without a GPU: ds4 fake-cuda --nccl), or leave out \
                 --transport",
            ));
        }
    };
    let library = Library::load(vendor).map_err(|error| Failure {
        exit: Exit::NothingDone,
        message: format!("--transport nccl: {error}"),
    })?;
    Ok(Arc::new(library))
}

/// Where the library of a plan makes its sums: on the device of the slab.
pub(super) fn seat(plan: &Plan, target: &Target, slab: &Allocation) -> Option<Seat> {
    Some(Seat {
        library: Arc::clone(plan.library.as_ref()?),
        backend: Arc::clone(target.real_devices()?),
        device: slab.device,
    })
}

impl Worker<'_> {
    /// The library adds all parts on the device, and the sum comes to lie where the first peer's part
    /// would, in memory that holds no sum before.
    pub(super) fn sum_by_library(&mut self, gate: Gate) -> Result<u64, End> {
        let bytes = self.out.len();
        let (from, to) = match (self.memory.out(gate), self.memory.incoming(gate, 0)) {
            (Some(from), Some(to)) => (self.memory.address(from), self.memory.address(to)),
            _ => self.spare_places(bytes)?,
        };
        let (backend, device) = (Arc::clone(&self.memory.backend), self.memory.slab.device);
        self.sum.resize(bytes, 0);
        self.sum.fill(0xff);
        backend.write(device, to, &self.sum)?;
        let watch = Stopwatch::start();
        self.rank.all_reduce(gate, OnDevice { from, to, bytes })?;
        let watch = watch.elapsed_ns();
        backend.read(device, to, &mut self.sum)?;
        Ok(watch)
    }

    /// Places beside the slab for a gate that it has none for, the own part already in the first one.
    fn spare_places(&mut self, bytes: usize) -> Result<(DeviceAddress, DeviceAddress), End> {
        let rounded = (bytes as u64).next_multiple_of(ALIGN_BYTES);
        let device = self.memory.slab.device;
        let from = self.memory.spare.have(2 * rounded, device)?;
        self.memory.backend.write(device, from, &self.out)?;
        Ok((from, DeviceAddress(from.0 + rounded)))
    }
}

/// Memory beside the slab, on its device.
pub(super) struct Spare<'a> {
    allocator: &'a Allocator,
    block: Option<Allocation>,
}

impl<'a> Spare<'a> {
    pub(super) const fn none(allocator: &'a Allocator) -> Self {
        Self {
            allocator,
            block: None,
        }
    }

    /// A block of so many bytes at least.
    fn have(&mut self, bytes: u64, device: DeviceId) -> Result<DeviceAddress, End> {
        if let Some(block) = self.block.filter(|it| it.bytes >= bytes) {
            return Ok(block.address);
        }
        let none = |why: String| End::Wrong(format!("no memory beside the slab: {why}"));
        if let Some(block) = self.block.take() {
            let freed = self.allocator.free(block.handle);
            freed.map_err(|error| none(error.to_string()))?;
        }
        let request = Request {
            mask: DeviceMask::only(device),
            align_bytes: ALIGN_BYTES,
            ..Request::new(bytes)
        };
        let block = self.allocator.allocate(&request);
        let block = block.map_err(|error| none(error.to_string()))?;
        self.block = Some(block);
        Ok(block.address)
    }
}
