//! NCCL and RCCL, found at run time: sums over all ranks on their devices, made by a library that is
//! not ours.
//!
//! Results are plain numbers, so that a code that is newer than this table is an unknown error. Calls
//! return before their work is done (`blocking = 0`); all the same they are made on a thread of their
//! own ([`Group`]), since a library has been seen to hang in calls of either kind: what does not
//! return costs the run its thread and never its deadline.

mod group;
mod layout;
#[expect(unsafe_code, reason = "NCCL is a C library")]
mod library;

pub use group::{Answer, Group, Order, Seat};
pub use layout::ID_BYTES;
pub use library::{CallError, Library, LoadError};
