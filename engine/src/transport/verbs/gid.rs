//! The addresses of a port, and which of them reaches a peer: pure.
//!
//! A port has a table of GIDs, and a wrong choice among them shows as a time-out much later. The
//! order here is: what both sides have in common, what is routed before what is not, RoCE version
//! 2 before 1, the nearest subnet, the lower index. Link-local addresses are taken only where both
//! sides have nothing else in common. The tests hold the tables of published reports.

use std::cmp::Reverse;
use std::fmt;
use std::net::Ipv6Addr;

/// How packets to and from a GID look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GidKind {
    /// InfiniBand's own.
    InfiniBand,
    /// RoCE version 1: on one Ethernet segment only.
    RoceV1,
    /// RoCE version 2: over IP, routable.
    RoceV2,
    /// The system does not say.
    Unknown,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
            Self::Unknown => "of unknown type",
        })
    }
}

/// How far an address reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// An IPv4 address in IPv6 form.
    Ipv4,
    /// An IPv6 address, global or unique local.
    Ipv6,
    /// 169.254.0.0/16: one link.
    Ipv4LinkLocal,
    /// fe80::/10: one link.
    Ipv6LinkLocal,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv4LinkLocal => "link-local IPv4",
            Self::Ipv6LinkLocal => "link-local IPv6",
        })
    }
}

/// What carries a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: packets go by LID.
    InfiniBand,
    /// Ethernet: packets go by GID.
    Ethernet,
    /// Another, by its number; as Ethernet.
    Other(u8),
}

impl LinkLayer {
    /// Reads `IBV_LINK_LAYER_*`; unspecified is InfiniBand, as in rdma-core.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 | 1 => Self::InfiniBand,
            2 => Self::Ethernet,
            other => Self::Other(other),
        }
    }

    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::InfiniBand => 1,
            Self::Ethernet => 2,
            Self::Other(code) => code,
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Other(code) => write!(f, "link layer {code}"),
        }
    }
}

/// One entry of a port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the table; places differ between hosts.
    pub index: u32,
    /// How packets look.
    pub kind: GidKind,
    /// The address.
    pub raw: [u8; 16],
    /// The network interface that it belongs to, if one that this process sees has it.
    pub interface: Option<String>,
}

impl Gid {
    /// How far it reaches.
    #[must_use]
    pub fn scope(&self) -> Scope {
        let address = Ipv6Addr::from(self.raw);
        match address.to_ipv4_mapped() {
            Some(ip) if ip.is_link_local() => Scope::Ipv4LinkLocal,
            Some(_) => Scope::Ipv4,
            None if address.is_unicast_link_local() => Scope::Ipv6LinkLocal,
            None => Scope::Ipv6,
        }
    }

    /// The address as people write it.
    #[must_use]
    pub fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.raw)
    }
}

/// Whether an entry holds nothing: all zeros, or the bare link-local prefix.
#[must_use]
pub(super) fn is_empty(raw: [u8; 16]) -> bool {
    let [high, low] = halves(raw);
    low == 0 && (high == 0 || high == 0xfe80 << 48)
}

fn halves(raw: [u8; 16]) -> [u64; 2] {
    let whole = u128::from_be_bytes(raw);
    let low = u64::try_from(whole & u128::from(u64::MAX)).unwrap_or(0);
    let high = u64::try_from(whole >> 64).unwrap_or(0);
    [high, low]
}

/// A port's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    /// What carries packets.
    pub link: LinkLayer,
    /// The entries that hold something, in the order of their indices.
    pub gids: Vec<Gid>,
}

/// An own entry that may reach the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index in the own table.
    pub index: u32,
    /// Index in the peer's table, where the peer's is known.
    pub peer: Option<u32>,
    /// Why it stands where it stands.
    pub why: String,
}

/// The own entries that may reach a peer, the best first; without a peer's table, those that would
/// reach most peers.
#[must_use]
pub fn rank_gids(table: &GidTable, peer: Option<&GidTable>) -> Vec<Choice> {
    let Some(peer) = peer else {
        let mut alone: Vec<&Gid> = table.gids.iter().collect();
        alone.sort_by_key(|gid| (gid.interface.is_none(), class(table.link, gid), gid.index));
        let choices = alone.into_iter().map(|gid| Choice {
            index: gid.index,
            peer: None,
            why: words(table.link, gid, None),
        });
        return choices.collect();
    };
    if peer.link != table.link {
        return Vec::new();
    }
    let mut pairs: Vec<(&Gid, &Gid)> = Vec::new();
    for own in &table.gids {
        let fitting = peer
            .gids
            .iter()
            .filter(|theirs| fit(table.link, own, theirs));
        pairs.extend(fitting.map(|theirs| (own, theirs)));
    }
    pairs.sort_by_key(|(own, theirs)| {
        (
            own.interface.is_none() || theirs.interface.is_none(),
            class(table.link, own).max(class(table.link, theirs)),
            Reverse(common_bits(own.raw, theirs.raw)),
            own.index,
            theirs.index,
        )
    });
    let choices = pairs.into_iter().map(|(own, theirs)| Choice {
        index: own.index,
        peer: Some(theirs.index),
        why: words(table.link, own, Some(theirs)),
    });
    choices.collect()
}

/// Lower is better.
fn class(link: LinkLayer, gid: &Gid) -> u8 {
    if link == LinkLayer::InfiniBand {
        return 0;
    }
    let scope = match gid.scope() {
        Scope::Ipv4 => 0,
        Scope::Ipv6 => 1,
        Scope::Ipv4LinkLocal => 2,
        Scope::Ipv6LinkLocal => 3,
    };
    let kind = match gid.kind {
        GidKind::RoceV2 => 0,
        GidKind::Unknown => 4,
        GidKind::RoceV1 | GidKind::InfiniBand => 8,
    };
    scope + kind
}

/// Whether packets from one find the other at all.
fn fit(link: LinkLayer, own: &Gid, theirs: &Gid) -> bool {
    if link == LinkLayer::InfiniBand {
        return true;
    }
    let known = |gid: &Gid| gid.kind != GidKind::Unknown;
    let kinds = own.kind == theirs.kind || !known(own) || !known(theirs);
    kinds && own.scope() == theirs.scope()
}

fn common_bits(one: [u8; 16], two: [u8; 16]) -> u32 {
    (u128::from_be_bytes(one) ^ u128::from_be_bytes(two)).leading_zeros()
}

fn words(link: LinkLayer, own: &Gid, peer: Option<&Gid>) -> String {
    let mut why = if link == LinkLayer::InfiniBand {
        "InfiniBand: packets go by LID".to_owned()
    } else {
        format!("{}, {}", own.kind, own.scope())
    };
    if matches!(own.scope(), Scope::Ipv6LinkLocal | Scope::Ipv4LinkLocal)
        && link != LinkLayer::InfiniBand
    {
        why.push_str(": reaches one link only");
    }
    if own.interface.is_none() && link != LinkLayer::InfiniBand {
        why.push_str(", of no interface that is seen here");
    }
    if let Some(peer) = peer {
        why.push_str(&format!(", to {}", peer.address()));
    }
    why
}

#[cfg(test)]
#[path = "gid_tests.rs"]
mod tests;
