//! Tensor parallelism: N ranks that run one model in lockstep and exchange partial results at
//! gates.
//!
//! Everything here is pure but for memory: bytes and the time come in, bytes and deadlines go out.
//! There is no socket, thread, clock or randomness, so that sockets, shared memory, simulated links
//! and tests drive the same code. `PROTOCOL.md` beside this file has every byte.
//!
//! # How a driver of sockets uses it
//!
//! *Bring-up.* For each accepted connection make a [`trust::Listener`], for each dialled one a
//! [`trust::Dialer`], with a fresh nonce from the system. Move bytes between it and the socket
//! until it is [`trust::Step::Done`] and its last bytes are written; then
//! [`session::Session::attach`] the connection. [`admission::Admission`] says whose connections
//! may begin. A worker dials control first; the session that comes back opens its data
//! connections. Refused connections are closed and forgotten.
//!
//! *Control connections* are read and written whenever they can be, gates or not:
//!
//! ```text
//! read(socket, session.control_to_read(peer))   -> session.control_read(now, peer, n)
//! write(socket, session.control_to_write(peer)) -> session.control_wrote(peer, n)
//! while let Some(event) = session.poll_event(now) { … }
//! ```
//!
//! Where there is no room to read into, a message waits to be taken or the session is over: do not
//! read then, as a read of nothing looks like the end of the connection. Take events inside gates
//! too: the peers' last words come this way.
//!
//! *Gates* are the hot path: no byte is copied, nothing is allocated, and the session never sees a
//! buffer for longer than a call. `out` is the rank's own vector in the slab, `incoming` the place
//! of the peer's. Both directions go at once:
//!
//! ```text
//! session.gate_begin(now, gate, out)?;                       // one pass over `out`: its checksum
//! while session.in_gate() {
//!     let (head, body) = session.gate_to_write(peer);        // one vectored write of both
//!     let n = writev(socket, [head, &out[body]]);            // non-blocking
//!     session.gate_wrote(peer, n);
//!     let (head, body) = session.gate_to_read(peer);         // one vectored read, or the head alone
//!     let n = readv(socket, [head, &mut incoming[body]]);    // first, if no byte may be placed
//!     session.gate_read(now, peer, n, &incoming)?;           // before its header was judged
//!     // nothing moved: spin, then poll(2) until session.next_deadline(), control socket included
//!     session.handle_time(now);
//! }
//! ```
//!
//! A checksum is added up over each piece as it comes, while it is in the cache. A transport that
//! moves payloads itself (shared memory, RDMA, NVLink) places the header and the payload where the
//! peer finds them and reports them with the same calls.
//!
//! *Time.* Call [`session::Session::handle_time`] no later than
//! [`session::Session::next_deadline`], also while the application computes: a rank that says
//! nothing for the idle deadline is taken for dead. *The end.* When
//! [`session::Session::is_over`], close the connections; report an end of a connection with
//! [`session::Session::closed`] only after reading all that it held.
//!
//! More than two ranks: small gates go to every peer (one-shot), large sums round a ring
//! ([`session::Session::way`] says which). For a ring the driver calls `ring_begin`, then
//! `ring_to_write`, `ring_wrote`, `ring_to_read` and `ring_read` in the place of the gate's calls.
//! [`exchange`] has who sends what to whom, [`reduce`] the order of every sum.

pub mod admission;
#[cfg(test)]
pub(crate) mod captured;
mod coding;
pub mod collective;
pub mod command;
pub mod error;
pub mod exchange;
pub mod frame;
pub mod hello;
mod mirror;
pub mod reduce;
pub mod roster;
pub mod schedule;
pub mod seal;
pub mod session;
pub mod slab;
pub mod time;
pub mod transport;
pub mod trust;
pub mod v7;
pub mod verbs;

pub use coding::UnexpectedEnd;
