//! The device kernels' CPU references: what each kernel must leave in memory.
//!
//! A kernel on a device is right if its output equals these, byte for byte. Device sources are not
//! here yet; the references come first, because simulated devices execute them.
#![forbid(unsafe_code)]

mod add;
mod checksum;
mod fill;
mod launch;
mod pattern;

pub use add::add_f32;
pub use checksum::checksum;
pub use fill::fill;
pub use launch::{Kernel, Launch, MAX_ARGUMENTS};
pub use pattern::{Mismatch, Pattern};
