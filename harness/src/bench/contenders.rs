//! Connections of two ranks, and bare ones that carry the same bytes.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use ds4_engine::tp::frame::HEAD_BYTES;
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Gate, GateKind, GateName, Schedule};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::mapping::Mapping;
use ds4_engine::transport::{Rank, RawPath, Setup, Wait};

use super::words;

/// The largest message of the bare copy through shared memory.
const SLOT_BYTES: usize = 256 << 10;
const FIRST_SLOT: usize = 4096;

/// Something that exchanges bytes.
pub trait End: Send {
    /// Sends `out` and fills `incoming`, both at once; one of them may be empty.
    ///
    /// # Errors
    /// A sentence: it broke.
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String>;
}

/// A connection, by both its ends.
pub struct Contender {
    /// What it is.
    pub name: &'static str,
    /// Beside which other one, by its place.
    pub(super) peer: Option<usize>,
    /// The longest message that it takes.
    pub most_bytes: usize,
    /// The ends; each runs in a thread of its own.
    pub ends: [Box<dyn End>; 2],
}

fn connection() -> io::Result<[TcpStream; 2]> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    Ok([one, listener.accept()?.0])
}

/// New connections without a session, ours and those beside which ours are measured.
///
/// # Errors
/// A sentence: one could not be made.
pub fn paths() -> Result<Vec<Contender>, String> {
    let [one, two] = connection().map_err(words)?;
    let tcp: [Box<dyn End>; 2] = [
        Box::new(RawPath::tcp(one).map_err(words)?),
        Box::new(RawPath::tcp(two).map_err(words)?),
    ];
    let (one, two) = UnixStream::pair().map_err(words)?;
    let taker = thread::spawn(move || RawPath::receive_shm(two));
    let made = RawPath::create_shm(one).map_err(words)?;
    let taken = taker.join().map_err(|_| "the other end panicked")?;
    let shm: [Box<dyn End>; 2] = [Box::new(made), Box::new(taken.map_err(words)?)];
    Ok(vec![
        bare_tcp(0)?,
        contender("tcp", Some(0), tcp),
        bare_shm()?,
        contender("shm", Some(2), shm),
    ])
}

/// New connections with a session, and as many bytes beside each bare message as a gate's header
/// has.
///
/// # Errors
/// A sentence: one could not be made.
pub fn gates() -> Result<Vec<Contender>, String> {
    let tcp = Link {
        transport: Transport::Tcp,
        payload_crc: true,
        encrypt: false,
    };
    let shm = Link {
        transport: Transport::Shm,
        ..tcp
    };
    let unchecked = |link| Link {
        payload_crc: false,
        ..link
    };
    let encrypted = Link {
        encrypt: true,
        ..tcp
    };
    Ok(vec![
        bare_tcp(HEAD_BYTES)?,
        contender("tcp, no checksum", Some(0), ranks(unchecked(tcp))?),
        contender("tcp", Some(0), ranks(tcp)?),
        contender("tcp, encrypted", Some(2), ranks(encrypted)?),
        bare_shm()?,
        contender("shm, no checksum", Some(4), ranks(unchecked(shm))?),
        contender("shm", Some(2), ranks(shm)?),
    ])
}

fn contender(name: &'static str, peer: Option<usize>, ends: [Box<dyn End>; 2]) -> Contender {
    Contender {
        name,
        peer,
        most_bytes: usize::MAX,
        ends,
    }
}

impl End for RawPath {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        Self::exchange(self, out, incoming).map_err(words)
    }
}

/// A socket and nothing else; with as many bytes before each message as a gate's header has.
struct BareTcp {
    stream: TcpStream,
    head_bytes: usize,
}

fn bare_tcp(head_bytes: usize) -> Result<Contender, String> {
    let mut ends: Vec<Box<dyn End>> = Vec::new();
    let streams = connection().map_err(words)?;
    for stream in streams {
        stream.set_nodelay(true).map_err(words)?;
        stream.set_nonblocking(true).map_err(words)?;
        ends.push(Box::new(BareTcp { stream, head_bytes }));
    }
    let ends = ends.try_into().map_err(|_| "not two ends".to_owned())?;
    Ok(contender("bare tcp", None, ends))
}

impl End for BareTcp {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        let head = [0; HEAD_BYTES];
        let mut their_head = [0; HEAD_BYTES];
        let with_head = |bytes: usize| {
            if bytes == 0 {
                0
            } else {
                self.head_bytes + bytes
            }
        };
        let (to_send, to_come) = (with_head(out.len()), with_head(incoming.len()));
        let (mut sent, mut came) = (0, 0);
        while sent < to_send || came < to_come {
            if sent < to_send {
                let parts = [
                    IoSlice::new(&head[sent.min(self.head_bytes)..self.head_bytes]),
                    IoSlice::new(&out[sent.saturating_sub(self.head_bytes)..]),
                ];
                sent += later(self.stream.write_vectored(&parts))?;
            }
            if came < to_come {
                let mut parts = [
                    IoSliceMut::new(&mut their_head[came.min(self.head_bytes)..self.head_bytes]),
                    IoSliceMut::new(&mut incoming[came.saturating_sub(self.head_bytes)..]),
                ];
                came += match self.stream.read_vectored(&mut parts) {
                    Ok(0) => return Err("the bare socket was closed".to_owned()),
                    read => later(read)?,
                };
            }
        }
        Ok(())
    }
}

fn later(moved: io::Result<usize>) -> Result<usize, String> {
    match moved {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        other => other.map_err(words),
    }
}

/// Two copies through shared memory and a flag, two slots in turns.
struct BareShm {
    map: Arc<Mapping>,
    side: usize,
    sent: u64,
    came: u64,
}

fn bare_shm() -> Result<Contender, String> {
    let (map, _file) = Mapping::create(FIRST_SLOT + 4 * SLOT_BYTES).map_err(words)?;
    let map = Arc::new(map);
    let end = |side| -> Box<dyn End> {
        Box::new(BareShm {
            map: Arc::clone(&map),
            side,
            sent: 0,
            came: 0,
        })
    };
    Ok(Contender {
        most_bytes: SLOT_BYTES,
        ..contender("memcpy", None, [end(0), end(1)])
    })
}

impl BareShm {
    fn flag(&self, side: usize) -> Result<&AtomicU64, String> {
        self.map
            .word(side * 128)
            .ok_or_else(|| "no flag".to_owned())
    }

    const fn slot(side: usize, number: u64) -> usize {
        FIRST_SLOT + (side * 2 + (number & 1) as usize) * SLOT_BYTES
    }
}

impl End for BareShm {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        let mut fits = true;
        if !out.is_empty() {
            self.sent += 1;
            fits &= self.map.write(Self::slot(self.side, self.sent), out);
            self.flag(self.side)?.store(self.sent, Ordering::Release);
        }
        if !incoming.is_empty() {
            self.came += 1;
            let flag = self.flag(1 - self.side)?;
            while flag.load(Ordering::Acquire) < self.came {
                std::hint::spin_loop();
            }
            fits &= self
                .map
                .read(Self::slot(1 - self.side, self.came), incoming);
        }
        fits.then_some(()).ok_or_else(|| "no room".to_owned())
    }
}

impl End for Rank {
    fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> Result<(), String> {
        Self::exchange(self, gate(out.len()), out, &mut [incoming]).map_err(words)
    }
}

/// How two ranks are joined.
#[derive(Clone, Copy)]
struct Link {
    transport: Transport,
    payload_crc: bool,
    encrypt: bool,
}

fn ranks(link: Link) -> Result<[Box<dyn End>; 2], String> {
    let mut setups = setups(2, link.transport)?;
    for setup in &mut setups {
        setup.config.identity.payload_crc = link.payload_crc;
        setup.encrypt = link.encrypt;
        setup.wait = Wait::SPIN;
    }
    let open = |setup| move || Rank::open(setup, &mut |_| {}).map_err(words);
    let [leader, worker] = setups.try_into().map_err(|_| "not two ranks")?;
    let worker = thread::spawn(open(worker));
    let leader = open(leader)()?;
    let worker = worker.join().map_err(|_| "the worker panicked")??;
    Ok([Box::new(leader), Box::new(worker)])
}

/// Ranks that may stand still for long, while others are measured or compute what is right.
pub(super) fn setups(ranks: u32, transport: Transport) -> Result<Vec<Setup>, String> {
    const LONG_NS: u64 = 3_600_000_000_000;
    let geometry = SlabGeometry {
        ranks,
        ..SlabGeometry::new(1, 4)
    };
    let layout = SlabLayout::aligned(geometry).map_err(words)?;
    let identity = Identity::new(layout, Schedule::every_gate(1).map_err(words)?);
    let mut setups = Setup::on_loopback(identity, &Key::new([1; 32])).map_err(words)?;
    for setup in &mut setups {
        setup.config.transports = TransportSet::of(&[transport]);
        setup.config.deadlines.idle_ns = LONG_NS;
    }
    Ok(setups)
}

/// A gate of any size.
pub(super) const fn gate(bytes: usize) -> Gate {
    Gate {
        layer: 0,
        name: GateName::Attention,
        kind: GateKind::Big {
            bytes: bytes as u64,
        },
    }
}
