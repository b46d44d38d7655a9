//! What a simulated network of RDMA devices does, as data.

use ds4_engine::transport::verbs::{Gid, GidKind, LinkLayer, Mtu, Status};

/// A host's device with its one port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsHost {
    /// The device's name.
    pub device: String,
    /// What carries packets.
    pub link: LinkLayer,
    /// Its address in an InfiniBand subnet.
    pub lid: u16,
    /// The largest packet.
    pub mtu: Mtu,
    /// The largest message, in bytes.
    pub max_message_bytes: u32,
    /// The table.
    pub gids: Vec<Gid>,
    /// Whether the port is active.
    pub active: bool,
    /// Whether reliable connections can be had.
    pub reliable: bool,
    /// Registrations that there is room for.
    pub regions_max: u32,
    /// Queue pairs that there is room for.
    pub pairs_max: u32,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsFault {
    /// A call returns null or its error.
    Call {
        /// Whose.
        host: usize,
        /// The function.
        call: &'static str,
        /// Which of its calls, from 0.
        nth: u64,
    },
    /// A write ends in this way, and so does the connection.
    Write {
        /// Whose.
        host: usize,
        /// Which of its writes, from 0.
        nth: u64,
        /// How.
        status: Status,
    },
    /// A receive ends in this way, and so does the connection; the write went well.
    Receive {
        /// Whose.
        host: usize,
        /// Which of its receives, from 0.
        nth: u64,
        /// How.
        status: Status,
    },
    /// Packets from and to a GID find no way.
    Unroutable {
        /// The address.
        raw: [u8; 16],
    },
}

impl VerbsFault {
    /// How a host's write ends by this fault.
    pub(super) fn of_write(&self, host: usize, nth: u64) -> Option<Status> {
        match self {
            Self::Write {
                host: at,
                nth: which,
                status,
            } if (*at, *which) == (host, nth) => Some(*status),
            Self::Call { .. }
            | Self::Write { .. }
            | Self::Receive { .. }
            | Self::Unroutable { .. } => None,
        }
    }

    /// How a host's receive ends by this fault.
    pub(super) fn of_receive(&self, host: usize, nth: u64) -> Option<Status> {
        match self {
            Self::Receive {
                host: at,
                nth: which,
                status,
            } if (*at, *which) == (host, nth) => Some(*status),
            Self::Call { .. }
            | Self::Write { .. }
            | Self::Receive { .. }
            | Self::Unroutable { .. } => None,
        }
    }
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsPlan {
    /// The source of what the plan does not name.
    pub seed: u64,
    /// The hosts.
    pub hosts: Vec<VerbsHost>,
    /// Of a thousand unreliable messages so many are lost.
    pub lost_per_mille: u64,
    /// Of a thousand unreliable messages so many arrive behind the next one.
    pub late_per_mille: u64,
    /// What goes wrong.
    pub faults: Vec<VerbsFault>,
}

impl VerbsHost {
    /// A RoCE port with a link-local and an IPv4-mapped address, `n` being its last byte.
    #[must_use]
    pub fn roce(n: u8) -> Self {
        let mut link_local = [0; 16];
        link_local[0] = 0xfe;
        link_local[1] = 0x80;
        link_local[15] = n;
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xff, 0xff, 10, 8, 0, n]);
        let gid = |index, raw| Gid {
            index,
            kind: GidKind::RoceV2,
            raw,
            interface: Some("eth0".to_owned()),
        };
        Self {
            device: "sim0".to_owned(),
            link: LinkLayer::Ethernet,
            lid: 0,
            mtu: Mtu::from_code(3).unwrap_or(Mtu::SMALLEST),
            max_message_bytes: 1 << 30,
            gids: vec![gid(0, link_local), gid(1, mapped)],
            active: true,
            reliable: true,
            regions_max: 100,
            pairs_max: 10,
        }
    }
}

impl VerbsPlan {
    /// So many hosts with RoCE ports, and nothing goes wrong.
    #[must_use]
    pub fn quiet(hosts: u8) -> Self {
        Self {
            seed: 1,
            hosts: (1..=hosts).map(VerbsHost::roce).collect(),
            lost_per_mille: 0,
            late_per_mille: 0,
            faults: Vec::new(),
        }
    }
}
