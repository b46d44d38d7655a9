//! The device kernels: one source for CUDA and HIP, compiled, and a CPU reference for each.
//!
//! A kernel on a device is right if its output equals the reference's, byte for byte; simulated
//! devices execute the references. The sources are in `kernels/device`, and what they compile to is
//! checked in, so that a build needs no compiler for devices; `cargo ci kernels` compares the two.
#![forbid(unsafe_code)]

mod add;
mod checksum;
mod fill;
pub mod gate;
mod launch;
mod module;
mod pattern;

pub use add::add_f32;
pub use checksum::checksum;
pub use fill::fill;
pub use launch::{Kernel, Launch, MAX_ARGUMENTS};
pub use module::{CODE_OBJECTS, PTX, geometry};
pub use pattern::{Mismatch, Pattern, Tally};
