//! A multi-GPU device-memory allocator with placement hints.
#![deny(unsafe_code)]

pub mod alloc;
pub mod backend;
pub mod bytes;
pub mod device;
pub mod device_gates;
pub mod hash;
#[cfg(target_os = "linux")]
mod library;
#[cfg(target_os = "linux")]
pub mod nccl;
pub mod selection;
pub mod slab_memory;
pub mod tp;
#[cfg(target_os = "linux")]
pub mod transport;
