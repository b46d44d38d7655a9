//! The C interface of the allocator, and the functions that PyTorch loads from the same library.
//!
//! One allocator for the process, behind functions of plain types: [`api`] is what
//! `include/ds4.h` declares, [`torch`] what `torch.cuda.memory.CUDAPluggableAllocator` names.
//!
//! - A function that fails says so by its result and keeps the reason for its thread; no panic
//!   leaves it. It has changed nothing, but for two: a copy may have written part of its bytes, and
//!   shutting down ends the allocator in any case.
//! - Pointers are addresses of devices. Nothing here reads or writes through one, so that
//!   addresses of simulated devices serve as well.
//! - All functions may be called from all threads. Shutting down waits for the calls that run,
//!   which each thread counts for itself.
//!
//! Not here: decisions. Placement, budgets and stream order are the engine's.

pub mod api;
mod calls;
mod cxx;
mod failure;
mod instance;
mod last_error;
mod machine;
mod state;
pub mod torch;
mod types;

pub use types::*;
