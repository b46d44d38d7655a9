//! Connections of ranks: sockets, shared memory and queue pairs under the session of
//! [`crate::tp`].
//!
//! [`Rank::open`] brings a rank up: it listens, dials, proves the key on every connection, greets,
//! probes the paths on themselves and votes. Then [`Rank::exchange`] and
//! [`Rank::exchange_in_ring`] pass gates, or [`Rank::all_reduce`] where a library makes the sums, and
//! [`Rank::hear`] gives what the peers say. Everything ends at a deadline, by an error that names
//! rank, layer, gate and sequence, or in order with [`Rank::finish`].
//!
//! Every socket is non-blocking and every wait is bounded. There is one thread, the caller's: a
//! rank that computes for long calls [`Rank::serve`] now and then, for the peers take silence for
//! death.
//!
//! Linux only. Not here: links of GPUs, which place payloads themselves.

mod bringup;
mod clock;
mod collective;
mod dialling;
mod door;
mod ds4;
#[cfg(test)]
mod ds4_tests;
mod gates;
mod incoming;
#[expect(unsafe_code, reason = "memory that another process writes")]
pub mod mapping;
mod path;
mod probe;
mod rank;
mod raw;
mod roster;
#[cfg(test)]
mod sealed_tests;
mod setup;
mod shm;
mod sockets;
#[cfg(test)]
mod tests;
mod unix;
pub mod verbs;
mod wait;
mod wire;

pub use clock::Clock;
pub use collective::OnDevice;
pub use probe::PROBE_BYTES;
pub use rank::{LinkError, Mail, Rank, Said};
pub use raw::RawPath;
pub use sockets::Listening;
pub use verbs::Rdma;
pub use wait::Wait;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::nccl::Seat;
use crate::tp::session::Config;
use crate::tp::trust::Key;

/// Where a lower rank listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The rank.
    pub rank: u32,
    /// Its host, by name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// What a rank needs to come up.
#[derive(Debug)]
pub struct Setup {
    /// What it is, and how long it waits.
    pub config: Config,
    /// The group's key.
    pub key: Key,
    /// Whether TCP connections are encrypted: as for all other ranks.
    pub encrypt: bool,
    /// Where it waits for higher ranks; the highest does not.
    pub listening: Option<Listening>,
    /// Where lower ranks are: the leader, and workers that it does not know to be elsewhere than they
    /// say.
    pub remotes: Vec<Remote>,
    /// How it waits.
    pub wait: Wait,
    /// Bytes of each socket's send buffer; the system's choice if absent, which grows with the need.
    pub buffer_bytes: Option<usize>,
    /// What it brings for memory access over the network.
    pub rdma: Rdma,
    /// Where a collective library makes its sums, if it may.
    pub collective: Option<Seat>,
    /// Set by whoever wants the run to end.
    pub stop: Arc<AtomicBool>,
}
