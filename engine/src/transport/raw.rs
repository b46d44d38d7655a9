//! A path without a session: bytes and nothing else, for measuring the path itself.

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use super::path::{Path, is_later};
use super::shm::ShmPath;
use super::sockets::tune;
use super::wire::Wire;

/// One end of a path.
#[derive(Debug)]
pub struct RawPath(Path);

impl RawPath {
    /// A connection.
    ///
    /// # Errors
    /// The system's.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        tune(&stream, None)?;
        Ok(Self(Path::Tcp(Wire::Plain(stream))))
    }

    /// New shared memory, handed over by a socket.
    ///
    /// # Errors
    /// The system's.
    pub fn create_shm(bell: UnixStream) -> io::Result<Self> {
        Ok(Self(Path::Shm(Box::new(ShmPath::create(bell)?))))
    }

    /// The shared memory that the other end of the socket created.
    ///
    /// # Errors
    /// The system's, or what came is not such memory.
    pub fn receive_shm(bell: UnixStream) -> io::Result<Self> {
        Ok(Self(Path::Shm(Box::new(ShmPath::receive(bell)?))))
    }

    /// Sends `out` and fills `incoming`, both at once, looking again and again; either may be
    /// empty.
    ///
    /// # Errors
    /// The path ended.
    pub fn exchange(&mut self, out: &[u8], incoming: &mut [u8]) -> io::Result<()> {
        let (mut sent, mut came) = (0, 0);
        while sent < out.len() || came < incoming.len() {
            if let Some(rest) = out.get(sent..).filter(|rest| !rest.is_empty()) {
                sent += moved(self.0.write(&[], rest))?;
            }
            if let Some(rest) = incoming.get_mut(came..).filter(|rest| !rest.is_empty()) {
                came += moved(self.0.read(&mut [], rest))?;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn moved(count: io::Result<usize>) -> io::Result<usize> {
    match count {
        Err(error) if is_later(&error) => Ok(0),
        other => other,
    }
}
