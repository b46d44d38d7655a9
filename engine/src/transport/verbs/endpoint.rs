//! One end of a connection, from an opened device to a path.

use std::fmt;
use std::sync::Arc;

use super::calls::{CallError, Depth, Device, Keys, Library, Mtu, PairKind, Port, Route, Step};
use super::gid::{Gid, LinkLayer};
use super::path::{PeerRing, RECEIVES, SLOT_BYTES, SLOTS, VerbsPath, WRITES, receive_id};
use super::survey::{Taken, table};
use crate::tp::verbs;
use crate::transport::mapping::Mapping;

/// Bytes of both rings. Gates are copied in and out here; memory of a GPU, or the slab itself,
/// would be registered in its place.
const MEMORY_BYTES: usize = 2 * SLOTS * SLOT_BYTES;

/// Why an end cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndError {
    /// A queue pair of this kind is not to be had.
    NoPair(PairKind, CallError),
    /// Another call failed.
    Call(CallError),
    /// Memory cannot be registered.
    NoRegion(CallError),
    /// The system has no memory for the rings.
    Memory(String),
    /// The address is in the port's table no more.
    Gone(String),
    /// What the peer says does not fit.
    Peer(&'static str),
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPair(kind, error) => write!(f, "no {kind} queue pair: {error}"),
            Self::Call(error) => error.fmt(f),
            Self::NoRegion(error) => write!(
                f,
                "{error}; {} KiB must stay in memory for each peer: see ulimit -l, and how much the \
                 device may have",
                MEMORY_BYTES >> 10
            ),
            Self::Memory(why) => write!(f, "no memory for the rings: {why}"),
            Self::Gone(address) => write!(f, "the port has the address {address} no more"),
            Self::Peer(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for EndError {}

impl From<CallError> for EndError {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

/// An end that waits for the peer's.
#[derive(Debug)]
pub struct Endpoint {
    device: Box<dyn Device>,
    memory: Arc<Mapping>,
    keys: Keys,
    kind: PairKind,
    number: u32,
    psn: u32,
    port_number: u8,
    port: Port,
    gid: Gid,
}

impl Endpoint {
    /// Makes one on a port with one of its addresses, which is looked up anew: places in the table
    /// change when links or addresses do. `psn` is the own first packet number.
    ///
    /// # Errors
    /// [`EndError`].
    pub fn prepare(
        library: &dyn Library,
        taken: &Taken,
        address: [u8; 16],
        kind: PairKind,
        psn: u32,
    ) -> Result<Self, EndError> {
        let mut device = library.open(&taken.device)?;
        let port_number = taken.report.number;
        let port = device.port(port_number)?;
        let gids = table(&*device, port_number, &port)?.gids;
        let wanted = taken
            .report
            .table
            .gids
            .iter()
            .find(|gid| gid.raw == address);
        let same = |gid: &&Gid| gid.raw == address && wanted.is_none_or(|it| it.kind == gid.kind);
        let gid = gids.iter().find(same).cloned();
        let gid =
            gid.ok_or_else(|| EndError::Gone(std::net::Ipv6Addr::from(address).to_string()))?;
        let depth = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        device.create_queue(depth(RECEIVES + WRITES))?;
        let room = Depth {
            writes: depth(WRITES),
            receives: depth(RECEIVES),
        };
        let number = device
            .create_pair(kind, room)
            .map_err(|error| EndError::NoPair(kind, error))?;
        let memory = Mapping::create(MEMORY_BYTES);
        let (memory, _) = memory.map_err(|error| EndError::Memory(error.to_string()))?;
        let memory = Arc::new(memory);
        let keys = device.register(&memory).map_err(EndError::NoRegion)?;
        device.modify(&Step::Initialize { port: port_number })?;
        for _ in 0..RECEIVES {
            device.post_receive(receive_id())?;
        }
        Ok(Self {
            device,
            memory,
            keys,
            kind,
            number,
            psn: psn & 0x00ff_ffff,
            port_number,
            port,
            gid,
        })
    }

    /// What the peer must know, which is to use its address `peer_gid`.
    #[must_use]
    pub fn said(&self, peer_gid: [u8; 16]) -> verbs::Endpoint {
        let count = |count: usize| u32::try_from(count).unwrap_or(0);
        verbs::Endpoint {
            kind: self.kind.code(),
            mtu: self.port.active_mtu.code(),
            lid: self.port.lid,
            number: self.number,
            psn: self.psn,
            key: self.keys.remote,
            max_message_bytes: self.port.max_message_bytes,
            slot_bytes: count(SLOT_BYTES),
            slots: count(SLOTS),
            address: self.keys.address + (SLOTS * SLOT_BYTES) as u64,
            gid: self.gid.raw,
            peer_gid,
        }
    }

    /// Connects to the peer's end.
    ///
    /// # Errors
    /// [`EndError`].
    pub fn connect(mut self, peer: &verbs::Endpoint) -> Result<VerbsPath, EndError> {
        if peer.kind != self.kind.code() {
            return Err(EndError::Peer("the peer made another kind of connection"));
        }
        let mtu = Mtu::from_code(peer.mtu).ok_or(EndError::Peer("the peer's MTU is none"))?;
        let index = u8::try_from(self.gid.index);
        let subnet = |raw: [u8; 16]| raw.first_chunk::<8>().copied();
        let route = Route {
            port: self.port_number,
            gid_index: index.map_err(|_| EndError::Peer("the GID's index is above 255"))?,
            gid: peer.gid,
            lid: peer.lid,
            // Within an InfiniBand subnet the LID suffices, and routers need the GID.
            global: self.port.link != LinkLayer::InfiniBand
                || peer.lid == 0
                || subnet(self.gid.raw) != subnet(peer.gid),
            mtu: mtu.min(self.port.active_mtu),
            number: peer.number,
            psn: peer.psn,
        };
        self.device.modify(&Step::Receive(route))?;
        self.device.modify(&Step::Send { psn: self.psn })?;
        let ring = PeerRing {
            address: peer.address,
            key: peer.key,
            slot_bytes: u64::from(peer.slot_bytes),
            slots: u64::from(peer.slots),
        };
        let mut chunk = peer
            .slot_bytes
            .min(peer.max_message_bytes)
            .min(self.port.max_message_bytes);
        if self.kind == PairKind::Unreliable {
            // One packet: a lost one costs no others. And Soft-RoCE (Linux 6.1) drops everything
            // for good that follows a message of several packets of which one was lost.
            chunk = chunk.min(route.mtu.bytes());
        }
        let chunk = usize::try_from(chunk).unwrap_or(SLOT_BYTES).min(SLOT_BYTES);
        Ok(VerbsPath::new(
            self.device,
            self.memory,
            self.kind,
            ring,
            chunk,
        ))
    }

    /// The path's way in words, for reports.
    #[must_use]
    pub fn words(&self, device: &str) -> String {
        format!(
            "{} on {device} port {}, GID {} ({}, {}), MTU {}",
            self.kind,
            self.port_number,
            self.gid.index,
            self.gid.kind,
            self.gid.address(),
            self.port.active_mtu.bytes()
        )
    }
}
