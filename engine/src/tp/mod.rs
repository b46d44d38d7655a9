//! Tensor parallelism.
pub mod admission;
mod coding;
pub mod command;
pub mod frame;
pub mod schedule;
pub mod slab;
pub mod time;
pub mod trust;
