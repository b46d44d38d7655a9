//! A network of simulated RDMA devices behind the engine's verbs traits: a peer of the system's
//! library, in one process.
//!
//! **Modelled**: ports and their tables, queue pairs with their states, routes, packet numbers and
//! keys, receives that run out, completions with any status, limits on registrations, pairs and
//! message size, kinds of connections that cannot be had, messages of unreliable connections that
//! are lost or late, and calls that fail. **Not modelled**: time, bandwidth, packets.

mod device;
mod fabric;
mod plan;
#[cfg(test)]
mod tests;

pub use fabric::Fabric;
pub use plan::{VerbsFault, VerbsHost, VerbsPlan};
