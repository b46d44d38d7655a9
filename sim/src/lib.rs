//! Simulated devices behind the engine's backend trait: a peer of the real backends, never their
//! silent stand-in.
//!
//! **Modelled**, for each device: capacity, granularity and memory that other processes hold;
//! allocations and mapped pages with real bytes, kept sparse so that 8 × 141 GiB fit on a small
//! host; poison in memory that nobody wrote; every access checked against live, mapped memory, so
//! that overruns and use after free are errors; peer access for each ordered pair, absent, direct
//! or broken; kernels, by their CPU references; streams and events on a virtual clock, with the
//! races between them; faults as data ([`fault`]); the connections between ranks ([`link`]); and, on Linux, RDMA devices (`verbs`). [`Ledger`] checks from outside what came of
//! it. [`Instrumented`] counts, faults and watches the calls of any other backend in the same way.
//!
//! **Not modelled**: the threads of a kernel, contention for bandwidth between streams, the
//! driver's own memory, and fragmentation of physical memory. Times come
//! from [`cost`] and are simulated: they order work, and are no measurement.
//!
//! Gate kernels wait for their peers: work behind one that waits is kept until it has passed, and a
//! host that asks for its end waits in real time, at most for the gate's deadline.
//!
//! The same calls from one thread give the same results, virtual times and
//! [`SimBackend::state_hash`] on every machine: there is no wall clock, hash order or floating
//! point in any decision, and chances are drawn from the plan's seed.
//!
//! One lock for each device: calls on different devices run side by side, and a copy or kernel
//! on several locks them in the order of their indices.
//!
//! An allocator on simulated devices:
//!
//! ```
//! use std::sync::Arc;
//!
//! use ds4_engine::alloc::{Allocator, AllocatorConfig, Request};
//! use ds4_engine::device::DeviceMask;
//! use ds4_sim::{SimBackend, SimConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let backend = Arc::new(SimBackend::new(SimConfig::uniform(4, 8 << 30))?);
//! let allocator = Allocator::new(backend, AllocatorConfig::default())?;
//!
//! // 64 MiB of weights, on GPU 0 and nowhere else.
//! let weights = allocator.allocate(&Request { mask: DeviceMask(0b1), ..Request::new(64 << 20) })?;
//!
//! // Activations on GPU 2 if it has room, else anywhere.
//! let request = Request { mask: DeviceMask(0b100), ..Request::new(128 << 20) };
//! let activations = allocator.allocate_relaxing(&request, &[DeviceMask::ALL])?;
//! assert_eq!(activations.rung, 0);
//!
//! allocator.free(weights.handle)?;
//! assert!(allocator.free(weights.handle).is_err()); // freed before: nothing has changed
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod backend;
mod call;
mod clock;
mod config;
pub mod cost;
mod device;
pub mod fault;
mod fault_json;
mod finding;
mod gate;
mod held;
mod injector;
mod input;
mod instruments;
mod intervals;
mod launch;
mod ledger;
pub mod link;
mod machine;
mod memory;
mod native;
pub mod scaling;
mod size;
mod space;
mod stream;
#[cfg(test)]
mod tests;
mod topology;
#[cfg(target_os = "linux")]
pub mod verbs;

pub use call::{Call, CallCounts};
pub use config::{
    Link, MAX_CAPACITY_BYTES, MAX_NAME_CHARS, MAX_PAGES, MIN_GRANULE_BYTES, SimConfig, SimDevice,
};
pub use fault::{Fault, FaultCount, FaultKind, FaultPlan};
pub use finding::{Finding, LedgerBlock, StreamRace};
pub use input::{InputError, MAX_FILE_BYTES, read_file};
pub use instruments::{DeviceView, Instrumented, Instruments};
pub use ledger::Ledger;
pub use machine::SimBackend;
pub use memory::{OutOfBounds, POISON, SparseBytes};
pub use topology::Topology;
