//! The allocator on a real device, beside the driver's own ways of taking memory.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ds4_engine::backend::Backend;
use ds4_engine::backend::driver::DriverBackend;
use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask};

use super::measure::Spec;
use super::peers::{ByAddress, ByHandle, Contender, Peer, allocator_on, runner};
use super::plan::Plan;
use super::workload::{Workload, one_size, rmm_random};
use super::{Measured, Options, Row, run};

/// Allocations of a workload that the driver's direct calls can do in seconds.
const DIRECT_ALLOCATIONS: usize = 2_000;
/// Allocations of a workload of pools.
const POOL_ALLOCATIONS: usize = 100_000;
/// The size of the workload of one size, in bytes.
const ONE_SIZE_BYTES: u64 = 1 << 20;

/// What is run, in this order.
const BENCHES: [&str; 4] = ["random, few", "random", "1 MiB, few", "1 MiB"];

/// How many benches [`measure_device`] runs.
#[must_use]
pub fn device_benches(options: &Options) -> usize {
    BENCHES.iter().filter(|bench| options.wants(bench)).count()
}

/// Measures the allocator on the first device of `backend`, beside direct allocation and the
/// driver's stream-ordered pool.
///
/// Times are the host's: nothing is done with the memory, and no stream is waited for. A set `stop`
/// ends the measurement as in [`super::measure`].
///
/// # Errors
/// A sentence: an allocator cannot be opened, refused what it had to hold, or called the driver
/// although its memory was there.
pub fn measure_device(
    backend: &Arc<DriverBackend>,
    options: &Options,
    stop: &AtomicBool,
    mut each: impl FnMut(&Row),
) -> Result<Measured, String> {
    let part = if options.quick { 10 } else { 1 };
    let direct = DIRECT_ALLOCATIONS / part;
    let pooled = POOL_ALLOCATIONS / part;
    let plans = [
        (rmm_random(1, direct), direct_peer(backend)),
        (rmm_random(1, pooled), pool_peer(backend)),
        (one_size(ONE_SIZE_BYTES, direct), direct_peer(backend)),
        (one_size(ONE_SIZE_BYTES, pooled), pool_peer(backend)),
    ];
    let mut measured = Measured::default();
    for (bench, (workload, peer)) in BENCHES.into_iter().zip(plans) {
        if !options.wants(bench) {
            continue;
        }
        let workload = Arc::new(Workload {
            name: bench.to_owned(),
            ..workload
        });
        for subject in subjects(backend) {
            let plan = Plan {
                bench: workload.name.clone(),
                subject: Spec::new(&subject, &workload),
                peer: Some(Spec::new(&peer, &workload)),
            };
            let Some(rows) = run(&plan, options.rounds, stop)? else {
                measured.incomplete = true;
                return Ok(measured);
            };
            rows.iter().for_each(&mut each);
            measured.rows.extend(rows);
        }
        steady(backend, &workload)?;
    }
    Ok(measured)
}

/// Shows that once its memory is there, the allocator makes no call of the driver.
fn steady(backend: &Arc<DriverBackend>, workload: &Arc<Workload>) -> Result<(), String> {
    for subject in subjects(backend) {
        let spec = Spec::new(&subject, workload);
        let mut lane = subject.open(spec.capacity_bytes, workload.slots)?;
        lane.run(&workload.setup);
        lane.run(&workload.ops);
        if !workload.cyclic {
            lane.drain();
        }
        let before = backend.driver_calls();
        lane.run(&workload.ops);
        let calls = backend.driver_calls() - before;
        if calls > 0 {
            return Err(format!(
                "{} called the driver {calls} times in {} when its memory was there",
                subject.name, workload.name
            ));
        }
    }
    Ok(())
}

fn subjects(backend: &Arc<DriverBackend>) -> [Arc<Contender>; 2] {
    let mask = DeviceMask(1);
    let by_handle = Arc::clone(backend);
    let by_address = Arc::clone(backend);
    [
        Contender::new("allocator", move |bytes, slots| {
            let backend: Arc<dyn Backend> = by_handle.clone();
            let allocator = allocator_on(backend, bytes, false)?;
            Ok(runner(ByHandle { allocator, mask }, slots))
        }),
        Contender::new("allocator-address", move |bytes, slots| {
            let backend: Arc<dyn Backend> = by_address.clone();
            let allocator = allocator_on(backend, bytes, true)?;
            Ok(runner(ByAddress { allocator, mask }, slots))
        }),
    ]
    .map(Arc::new)
}

fn direct_peer(backend: &Arc<DriverBackend>) -> Arc<Contender> {
    let backend = Arc::clone(backend);
    let name = match backend.name() {
        "hip" => "hipMalloc",
        _ => "cuMemAlloc",
    };
    Arc::new(Contender::new(name, move |_, slots| {
        Ok(runner(Direct(Arc::clone(&backend), first()?), slots))
    }))
}

fn pool_peer(backend: &Arc<DriverBackend>) -> Arc<Contender> {
    let backend = Arc::clone(backend);
    let name = match backend.name() {
        "hip" => "hipMallocAsync",
        _ => "cuMemAllocAsync",
    };
    Arc::new(Contender::new(name, move |_, slots| {
        Ok(runner(DriverPool(Arc::clone(&backend), first()?), slots))
    }))
}

fn first() -> Result<DeviceId, String> {
    DeviceId::new(0).ok_or_else(|| "there is no device".to_owned())
}

/// One call of the driver for each allocation and each free.
struct Direct(Arc<DriverBackend>, DeviceId);

impl Peer for Direct {
    type Id = DeviceAddress;

    fn allocate(&mut self, bytes: u64) -> Option<DeviceAddress> {
        self.0.allocate(self.1, bytes).ok()
    }

    fn free(&mut self, id: DeviceAddress) {
        let freed = self.0.free(self.1, id);
        debug_assert!(freed.is_ok(), "the slots hold live blocks only");
    }
}

/// The driver's stream-ordered pool, with the settings it has by default.
struct DriverPool(Arc<DriverBackend>, DeviceId);

impl Peer for DriverPool {
    type Id = DeviceAddress;

    fn allocate(&mut self, bytes: u64) -> Option<DeviceAddress> {
        self.0.pool_allocate(self.1, bytes).ok()
    }

    fn free(&mut self, id: DeviceAddress) {
        let freed = self.0.pool_free(self.1, id);
        debug_assert!(freed.is_ok(), "the slots hold live blocks only");
    }
}
