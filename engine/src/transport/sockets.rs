//! TCP sockets: addresses, listening, dialling without waiting, and what is set on each.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::tp::admission::Source;

/// The sockets on which a rank waits for its peers.
#[derive(Debug)]
pub struct Listening {
    pub(super) sockets: Vec<TcpListener>,
}

impl Listening {
    /// Listens on every address that the host's name stands for.
    ///
    /// # Errors
    /// The name is unknown, or none of its addresses can be listened on; the last reason.
    pub fn open(host: &str, port: u16) -> io::Result<Self> {
        let mut sockets: Vec<TcpListener> = Vec::new();
        let mut failure = None;
        for address in resolve(host, port)? {
            // With port 0 the first socket's choice holds for the others.
            let chosen = sockets.first().and_then(|it| it.local_addr().ok());
            let port = chosen.map_or(port, |it| it.port());
            let opened = TcpListener::bind(SocketAddr::new(address.ip(), port));
            match opened.and_then(|it| it.set_nonblocking(true).map(|()| it)) {
                Ok(socket) => sockets.push(socket),
                Err(error) => failure = Some((address, error)),
            }
        }
        match failure {
            Some((address, error)) if sockets.is_empty() => Err(io::Error::new(
                error.kind(),
                format!("cannot listen on {address}: {error}"),
            )),
            _ => Ok(Self { sockets }),
        }
    }

    /// The addresses.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets
            .iter()
            .filter_map(|it| it.local_addr().ok())
            .collect()
    }

    /// Whether others than this host's processes can connect.
    #[must_use]
    pub fn is_public(&self) -> bool {
        self.addresses().iter().any(|it| !it.ip().is_loopback())
    }
}

/// All addresses of a name, without repetition; at least one.
pub(super) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    // What is written in brackets is an IPv6 address.
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    let found = (bare, port).to_socket_addrs().map_err(|error| {
        io::Error::new(error.kind(), format!("no address of {host:?}: {error}"))
    })?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{host:?} stands for no address"),
        ));
    }
    Ok(addresses)
}

/// Begins a connection; it is there, or has failed, when the socket can be written.
pub(super) fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// What came of [`dial`], once the socket can be written.
pub(super) fn dialled(stream: &TcpStream) -> io::Result<()> {
    Ok(sockopt::socket_error(stream)??)
}

/// Small frames go at once, and a host that is gone is noticed without traffic.
///
/// The sizes of the socket's buffers are the system's: setting them ends their growth.
pub(super) fn tune(stream: &TcpStream, buffer_bytes: Option<usize>) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(5))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    if let Some(bytes) = buffer_bytes {
        sockopt::set_socket_send_buffer_size(stream, bytes)?;
    }
    Ok(())
}

/// An address as the admission counts it.
pub(super) fn source(address: SocketAddr) -> Source {
    match address.ip() {
        IpAddr::V4(ip) => Source::from(u32::from(ip)),
        IpAddr::V6(ip) => Source::from(ip),
    }
}

/// Whether the other end runs on this host: packets to an own address come from it.
pub(super) fn same_host(stream: &TcpStream) -> bool {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(own), Ok(peer)) => {
            (own.ip().is_loopback() && peer.ip().is_loopback()) || own.ip() == peer.ip()
        }
        _ => false,
    }
}
