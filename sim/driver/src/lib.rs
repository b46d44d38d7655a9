//! Driver libraries over the simulated machine: a `libcuda` and a `libamdhip64` which programs
//! written against the CUDA driver API and the HIP runtime load in place of the real ones.
//!
//! **Answered**: devices and attributes, contexts, memory, copies, page mapping, streams, events,
//! modules and launches of the kernels that have CPU references. What a function costs, when it is
//! refused and which bytes it leaves is the model's doing (`ds4-sim`); this crate adds handles,
//! contexts, current devices and error codes. **Not answered** are other kernels, sharing between
//! processes, managed memory, graphs, textures and arrays: they give `NOT_SUPPORTED`.
//!
//! Differences from a driver, all of them deliberate:
//!
//! - Device addresses begin at 2^47, above every address of the host, which cannot touch them.
//! - Work of streams takes effect when it is given; streams keep order and (virtual) time. Host
//!   functions run on the calling thread, at once.
//! - A reserved range belongs to the device that was current, and a page is mapped in one place.
//! - Memory mapped for reading only may be written too.
//! - The stream per thread is the default stream.
//!
//! Layers: `cuda` and `hip` hold the exported functions, one file for each area and a few lines
//! each; the modules beside them hold what both mean; [`raw`] is the only place that touches the
//! caller's memory. No panic crosses to the caller: it becomes error 999.

mod call;
mod config;
mod context;
mod control;
mod device;
mod driver;
mod event;
mod host;
mod image;
mod launch;
mod memory;
mod raw;
mod status;
mod stream;
mod tables;
mod vmm;

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "hip")]
mod hip;
