//! The transports that gates can travel by, and how a group agrees on one.

use std::fmt;

/// How gates travel. The order is the order of preference, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Stores of one GPU into the memory of another on the same host.
    Nvlink,
    /// Direct memory access between hosts.
    Rdma,
    /// A collective library.
    Nccl,
    /// Memory that two processes of one host share.
    Shm,
    /// The data connection itself.
    Tcp,
}

impl Transport {
    /// All of them, best first.
    pub const ALL: [Self; 5] = [Self::Nvlink, Self::Rdma, Self::Nccl, Self::Shm, Self::Tcp];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvlink => "nvlink",
            Self::Rdma => "rdma",
            Self::Nccl => "nccl",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }

    /// Its bit in a set.
    #[must_use]
    pub const fn bit(self) -> u32 {
        match self {
            Self::Nvlink => 1,
            Self::Rdma => 2,
            Self::Nccl => 4,
            Self::Shm => 8,
            Self::Tcp => 16,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of transports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TransportSet(u32);

impl TransportSet {
    /// The set of these.
    #[must_use]
    pub fn of(transports: &[Transport]) -> Self {
        Self(transports.iter().fold(0, |set, it| set | it.bit()))
    }

    /// Reads a set from a peer; bits that this version does not know are dropped, since nobody
    /// here can use what they stand for.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        let known = Transport::ALL.iter().fold(0, |set, it| set | it.bit());
        Self(bits & known)
    }

    /// As a number.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// What both sets have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it has one.
    #[must_use]
    pub const fn has(self, transport: Transport) -> bool {
        self.0 & transport.bit() != 0
    }

    /// The best of them.
    #[must_use]
    pub fn best(self) -> Option<Transport> {
        Transport::ALL.into_iter().find(|it| self.has(*it))
    }
}

impl fmt::Display for TransportSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Transport::ALL
            .into_iter()
            .filter(|it| self.has(*it))
            .map(Transport::name)
            .collect();
        if names.is_empty() {
            f.write_str("none")
        } else {
            f.write_str(&names.join(", "))
        }
    }
}
