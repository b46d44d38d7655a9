//! How workers find each other: each tells the leader its port, and the leader tells all where the
//! others are, as it sees them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::rank::Rank;
use super::sockets::Listening;
use super::{Remote, Setup};
use crate::tp::roster::{Entry, Host};
use crate::tp::time::Time;

/// A worker tells the leader where it listens.
pub(super) fn tell_own(rank: &mut Rank, now: Time, listening: Option<&Listening>) {
    let addresses = listening.map(Listening::addresses).unwrap_or_default();
    let own = Entry {
        rank: rank.session.rank(),
        port: addresses.first().map_or(0, |it| it.port()),
        host: Host::Leaders,
    };
    if rank.session.ranks() > 2 {
        rank.session.tell_roster(now, &[own]);
    }
}

/// The leader tells all workers once everybody has told it; true when that is done.
pub(super) fn tell_all(rank: &mut Rank, now: Time) -> bool {
    let told = rank.session.roster();
    let workers = rank.session.ranks().saturating_sub(1);
    if workers < 2 || rank.session.rank() != 0 {
        return true;
    }
    if u32::try_from(told.len()) != Ok(workers) {
        return false;
    }
    let seen = told.iter().map(|entry| Entry {
        host: host_of(rank, entry.rank),
        ..*entry
    });
    let entries: Vec<Entry> = seen.collect();
    rank.session.tell_roster(now, &entries);
    true
}

/// Where a lower rank listens: as the user says, else as the leader does.
pub(super) fn remote(setup: &Setup, rank: &Rank, lower: u32) -> Option<Remote> {
    let known = |number| setup.remotes.iter().find(|it| it.rank == number);
    if let Some(known) = known(lower) {
        return Some(known.clone());
    }
    let roster = rank.session.roster();
    let entry = roster.iter().find(|it| it.rank == lower && it.port > 0)?;
    let host = match entry.host {
        Host::Leaders => known(0)?.host.clone(),
        Host::V4(address) => Ipv4Addr::from(address).to_string(),
        Host::V6(address) => Ipv6Addr::from(address).to_string(),
    };
    Some(Remote {
        rank: lower,
        host,
        port: entry.port,
    })
}

/// Where a worker connects from. Behind a loopback address it is on this host.
fn host_of(rank: &Rank, worker: u32) -> Host {
    match rank.control_address(worker) {
        None => Host::Leaders,
        Some(address) if address.is_loopback() => Host::Leaders,
        Some(IpAddr::V4(address)) => Host::V4(address.octets()),
        Some(IpAddr::V6(address)) => match address.to_ipv4_mapped() {
            Some(mapped) if mapped.is_loopback() => Host::Leaders,
            Some(mapped) => Host::V4(mapped.octets()),
            None => Host::V6(address.octets()),
        },
    }
}
