//! The calls of a verbs library as ds4 makes them: the seam behind which the real library and a
//! simulated one stand.
//!
//! Everything here is safe to call with anything: a device holds at most one of each object, knows
//! which there are, and gives them back in the right order when it is dropped.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::gid::{Gid, LinkLayer};
use super::status::Status;
use crate::transport::mapping::Mapping;

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The function.
    pub call: &'static str,
    /// The system's number, 0 if it gave none.
    pub errno: i32,
}

impl CallError {
    /// A failed call.
    #[must_use]
    pub const fn new(call: &'static str, errno: i32) -> Self {
        Self { call, errno }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            0 => write!(f, "{} failed and gave no reason", self.call),
            errno => write!(
                f,
                "{} failed: {}",
                self.call,
                io::Error::from_raw_os_error(errno)
            ),
        }
    }
}

impl std::error::Error for CallError {}

/// What a port is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// Waiting for the subnet's manager.
    Initializing,
    /// Almost ready.
    Armed,
    /// Ready.
    Active,
    /// Active for a moment without a link.
    Deferred,
    /// Another number.
    Other(u32),
}

impl PortState {
    /// Reads `enum ibv_port_state`.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Down,
            2 => Self::Initializing,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::Deferred,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down => f.write_str("down"),
            Self::Initializing => f.write_str("initializing"),
            Self::Armed => f.write_str("armed"),
            Self::Active => f.write_str("active"),
            Self::Deferred => f.write_str("active, link lost"),
            Self::Other(code) => write!(f, "state {code}"),
        }
    }
}

/// A path's largest packet, as verbs count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u8);

impl Mtu {
    /// The smallest, 256 bytes.
    pub const SMALLEST: Self = Self(1);

    /// Reads `enum ibv_mtu`: 1 is 256 bytes, 5 is 4096.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1..=5 => Some(Self(code)),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// What a port says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// What it is doing.
    pub state: PortState,
    /// What carries its packets.
    pub link: LinkLayer,
    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The largest packet now.
    pub active_mtu: Mtu,
    /// The largest packet ever.
    pub max_mtu: Mtu,
    /// The largest message, in bytes.
    pub max_message_bytes: u32,
    /// Entries of its table of GIDs, empty ones too.
    pub gids: u32,
}

/// What a connection promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairKind {
    /// Order and delivery, or an error (`IBV_QPT_RC`).
    Reliable,
    /// Whole messages or nothing, and no word about it (`IBV_QPT_UC`).
    Unreliable,
}

impl PairKind {
    /// `enum ibv_qp_type`.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Reliable => 2,
            Self::Unreliable => 3,
        }
    }
}

impl fmt::Display for PairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reliable => "RC",
            Self::Unreliable => "UC",
        })
    }
}

/// Room in a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Writes that may be posted.
    pub writes: u32,
    /// Receives that may be posted.
    pub receives: u32,
}

/// The next state of a queue pair, with what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It takes receives: its port.
    Initialize {
        /// The port.
        port: u8,
    },
    /// It hears the peer.
    Receive(Route),
    /// It speaks, beginning with this packet number.
    Send {
        /// The own first packet number.
        psn: u32,
    },
}

/// The way to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The own port.
    pub port: u8,
    /// The own GID's index.
    pub gid_index: u8,
    /// The peer's GID.
    pub gid: [u8; 16],
    /// The peer's LID.
    pub lid: u16,
    /// Whether packets carry GIDs: always on Ethernet, between subnets on InfiniBand.
    pub global: bool,
    /// The path's largest packet.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub number: u32,
    /// The peer's first packet number.
    pub psn: u32,
}

/// By what the peer and the device know registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where it begins.
    pub address: u64,
    /// What the peer must name.
    pub remote: u32,
}

/// Bytes to be written into the peer's memory, with a number that it gets when they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Comes back in the completion.
    pub id: u64,
    /// Where they lie in the registered memory.
    pub offset: usize,
    /// How many; none sends the number alone.
    pub bytes: u32,
    /// Where they go.
    pub address: u64,
    /// The key of the peer's memory.
    pub key: u32,
    /// The number.
    pub immediate: u32,
}

/// A piece of work that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As posted.
    pub id: u64,
    /// How it ended; if not well, only `id` and `vendor` mean something.
    pub status: Status,
    /// What the device's maker says about a failure.
    pub vendor: u32,
    /// Bytes that the peer wrote.
    pub bytes: u32,
    /// The peer's number, if this is a receive that has one.
    pub immediate: Option<u32>,
}

/// A verbs library.
pub trait Library: fmt::Debug + Send + Sync {
    /// Where it comes from, so that a simulated one cannot pass for hardware.
    fn origin(&self) -> String;

    /// The names of its devices.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn devices(&self) -> Result<Vec<String>, CallError>;

    /// Opens a device.
    ///
    /// # Errors
    /// [`CallError`]: the library's; there is no such device.
    fn open(&self, name: &str) -> Result<Box<dyn Device>, CallError>;
}

/// An opened device and the objects of one connection.
pub trait Device: fmt::Debug + Send {
    /// The numbers of its ports.
    fn ports(&self) -> Vec<u8>;

    /// What a port says of itself.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn port(&self, port: u8) -> Result<Port, CallError>;

    /// An entry of a port's table, none if it is empty.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn gid(&self, port: u8, index: u32) -> Result<Option<Gid>, CallError>;

    /// Registers memory, which the peer may write from then on.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn register(&mut self, memory: &Arc<Mapping>) -> Result<Keys, CallError>;

    /// Makes a queue of completions with a bell.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn create_queue(&mut self, entries: u32) -> Result<(), CallError>;

    /// Makes a queue pair; its number comes back.
    ///
    /// # Errors
    /// [`CallError`]: the library's; the device may not have this kind.
    fn create_pair(&mut self, kind: PairKind, depth: Depth) -> Result<u32, CallError>;

    /// Moves the queue pair on.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn modify(&mut self, step: &Step) -> Result<(), CallError>;

    /// Posts a receive, which takes one number of the peer.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn post_receive(&mut self, id: u64) -> Result<(), CallError>;

    /// Posts a write.
    ///
    /// # Errors
    /// [`CallError`]: the library's; the bytes do not lie in the registered memory.
    fn post_write(&mut self, write: &Write) -> Result<(), CallError>;

    /// The next piece of work that is over.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn poll(&mut self) -> Result<Option<Completion>, CallError>;

    /// Lets the bell ring at the next completion.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn arm(&mut self) -> Result<(), CallError>;

    /// Takes the rings of the bell that lie there; never waits.
    ///
    /// # Errors
    /// [`CallError`]: the library's.
    fn silence(&mut self) -> Result<(), CallError>;

    /// What becomes readable when the bell rings; none before there is a queue.
    fn bell(&self) -> Option<BorrowedFd<'_>>;
}
