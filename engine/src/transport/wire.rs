//! A TCP connection after its handshake: bytes as they are, or in sealed records.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _};
use std::net::TcpStream;
use std::ops::Range;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::tp::seal::{SEALED_BYTES_MAX, Seal, SealKeys, whole};

/// A proven connection that never blocks.
#[derive(Debug)]
pub(super) enum Wire {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Sealed records.
    Sealed(Box<Sealed>),
}

impl Wire {
    pub(super) fn new(stream: TcpStream, keys: Option<SealKeys>) -> Self {
        match keys {
            Some(keys) => Self::Sealed(Box::new(Sealed::new(stream, &keys))),
            None => Self::Plain(stream),
        }
    }

    pub(super) const fn stream(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Sealed(sealed) => &sealed.stream,
        }
    }

    /// Writes a header and what follows in one go, as much as there is room for. What was not
    /// taken must come again, with whatever may have come behind it.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] when there is no room; anything else ends the connection.
    pub(super) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => send(stream, head, body),
            Self::Sealed(sealed) => sealed.write(head, body),
        }
    }

    /// Reads a header and what follows in one go, as much as is there.
    ///
    /// # Errors
    /// As for [`Wire::write`]; the peer's orderly end is [`ErrorKind::UnexpectedEof`], and bytes
    /// that were changed on the way are [`ErrorKind::InvalidData`].
    pub(super) fn read(&mut self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => receive(stream, head, body),
            Self::Sealed(sealed) => sealed.read(head, body),
        }
    }

    /// Whether there is something to read of which the socket knows nothing any more.
    pub(super) fn holds(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Sealed(sealed) => sealed.holds(),
        }
    }
}

/// Records on a connection, both ways.
#[derive(Debug)]
pub(super) struct Sealed {
    stream: TcpStream,
    out: Seal,
    /// The record that is being sent; the next one is made when it has left.
    record: Vec<u8>,
    sent: usize,
    taken: usize,
    seal: Seal,
    /// At most one record and what came with its end.
    came: Box<[u8]>,
    /// What of `came` is sealed still.
    closed: Range<usize>,
    /// What of `came` was opened and not read yet.
    open: Range<usize>,
}

impl Sealed {
    fn new(stream: TcpStream, keys: &SealKeys) -> Self {
        Self {
            stream,
            out: Seal::new(&keys.send),
            record: Vec::with_capacity(SEALED_BYTES_MAX),
            sent: 0,
            taken: 0,
            seal: Seal::new(&keys.receive),
            came: vec![0; SEALED_BYTES_MAX].into(),
            closed: 0..0,
            open: 0..0,
        }
    }

    /// Says that bytes were written once their whole record was: so that nothing is left here of
    /// which the caller believes that it is on its way.
    fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        if self.record.is_empty() {
            let taken = self.out.seal(head, body, &mut self.record);
            self.taken = taken.map_err(io::Error::other)?;
            self.sent = 0;
        }
        while let Some(rest) = self.record.get(self.sent..).filter(|it| !it.is_empty()) {
            self.sent += send(&self.stream, &[], rest)?;
        }
        self.record.clear();
        Ok(self.taken)
    }

    fn read(&mut self, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
        if self.open.is_empty() {
            self.fetch()?;
        }
        let mut count = 0;
        for part in [head, body] {
            let from = self.came.get(self.open.clone()).unwrap_or_default();
            let length = part.len().min(from.len());
            if let (Some(to), Some(from)) = (part.get_mut(..length), from.get(..length)) {
                to.copy_from_slice(from);
            }
            self.open.start += length;
            count += length;
        }
        Ok(count)
    }

    /// Opens the next record.
    fn fetch(&mut self) -> io::Result<()> {
        loop {
            let bytes = self.came.get_mut(self.closed.clone()).unwrap_or_default();
            let opened = self.seal.open(bytes);
            let opened = opened.map_err(|bad| io::Error::new(ErrorKind::InvalidData, bad))?;
            if let Some((place, end)) = opened {
                let start = self.closed.start;
                self.open = start + place.start..start + place.end;
                self.closed.start += end;
                return Ok(());
            }
            // The next record begins at the front, where it has room.
            self.came.copy_within(self.closed.clone(), 0);
            self.closed = 0..self.closed.len();
            let room = self.came.get_mut(self.closed.end..).unwrap_or_default();
            self.closed.end += receive(&mut self.stream, &mut [], room)?;
        }
    }

    fn holds(&self) -> bool {
        let closed = self.came.get(self.closed.clone()).unwrap_or_default();
        !self.open.is_empty() || whole(closed).is_some()
    }
}

fn send(stream: &TcpStream, head: &[u8], body: &[u8]) -> io::Result<usize> {
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    let parts = if head.is_empty() {
        &parts[1..]
    } else {
        &parts[..]
    };
    let mut nothing = SendAncillaryBuffer::default();
    match sendmsg(stream, parts, &mut nothing, SendFlags::NOSIGNAL) {
        Err(Errno::INTR) => Err(ErrorKind::WouldBlock.into()),
        sent => Ok(sent?),
    }
}

fn receive(stream: &mut TcpStream, head: &mut [u8], body: &mut [u8]) -> io::Result<usize> {
    let read = if head.is_empty() {
        stream.read(body)
    } else {
        stream.read_vectored(&mut [IoSliceMut::new(head), IoSliceMut::new(body)])
    };
    match read {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(ErrorKind::WouldBlock.into()),
        other => other,
    }
}
