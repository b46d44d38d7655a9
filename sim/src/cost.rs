//! What calls cost in virtual nanoseconds. Every figure derived from here is simulated and must be
//! labelled so wherever it is printed.
//!
//! Measured on two NVIDIA H200 (NVLink NV18, CUDA 13.0): an allocate-and-free pair costs 64 µs at
//! 1 MiB and 1,060 µs at 1 GiB, which gives a base of 63 µs and 974 ns per MiB, split evenly here
//! because the halves were not measured apart; a peer copy moves 396.9 GB/s and a flag takes
//! 1.1 µs one way (both are properties of a [`Link`]). The other figures are round assumptions of
//! the right order, kept in one table so that a measurement can replace them.

use crate::call::Call;
use crate::config::Link;

/// Latency of one direction of a direct NVLink, in nanoseconds.
pub const NVLINK_LATENCY_NS: u64 = 1_100;
/// Bandwidth of one direction of a direct NVLink, in bytes per second.
pub const NVLINK_BYTES_PER_SECOND: u64 = 396_900_000_000;

/// Half of the base cost of an allocate-and-free pair, in nanoseconds.
const ALLOCATION_BASE_NS: u64 = 31_500;
/// Half of the cost of a pair for each MiB, in nanoseconds.
const ALLOCATION_NS_PER_MIB: u64 = 487;
/// Copies within a device read and write its memory (assumed 2.4 TB/s of copied bytes).
const LOCAL_BYTES_PER_SECOND: u64 = 2_400_000_000_000;
/// Fills only write (assumed).
const FILL_BYTES_PER_SECOND: u64 = 4_000_000_000_000;
/// Copies between host and device over PCIe 5 (assumed).
const HOST_BYTES_PER_SECOND: u64 = 53_000_000_000;
/// Time from the start of a piece of stream work to its first byte (assumed).
const LAUNCH_NS: u64 = 2_000;

/// `bytes` at `bytes_per_second`, rounded up, in nanoseconds.
#[must_use]
pub fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let product = u128::from(bytes) * 1_000_000_000;
    let ns = product.div_ceil(u128::from(bytes_per_second.max(1)));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// What a call costs the host before it returns, in nanoseconds; waiting comes on top.
#[must_use]
pub fn host_ns(call: Call, bytes: u64) -> u64 {
    match call {
        Call::Allocate | Call::Free => allocation_ns(bytes),
        Call::MemoryInfo => 10_000,
        Call::Reserve | Call::Release | Call::CreateStream | Call::DestroyStream => 5_000,
        Call::CreatePage | Call::DestroyPage => 20_000,
        Call::Map | Call::Unmap => 10_000,
        Call::Write | Call::Read => 4_000,
        Call::Fill | Call::CopyLocal | Call::CopyPeer | Call::Launch => 2_000,
        Call::Synchronize | Call::WaitEvent => 1_000,
        Call::RecordEvent | Call::StreamWaitEvent | Call::EventDone | Call::DestroyEvent => 500,
        Call::PeerAccess => 1_000,
    }
}

/// How long a copy between host and device occupies its stream, in nanoseconds.
#[must_use]
pub fn host_copy_ns(bytes: u64) -> u64 {
    LAUNCH_NS.saturating_add(transfer_ns(bytes, HOST_BYTES_PER_SECOND))
}

/// How long a fill occupies its stream, in nanoseconds.
#[must_use]
pub fn fill_ns(bytes: u64) -> u64 {
    LAUNCH_NS.saturating_add(transfer_ns(bytes, FILL_BYTES_PER_SECOND))
}

/// How long a kernel that reads and writes `bytes` bytes of its device occupies its stream, in
/// nanoseconds: as long as a fill of as many.
#[must_use]
pub fn kernel_ns(bytes: u64) -> u64 {
    fill_ns(bytes)
}

/// How long a copy within a device occupies its stream, in nanoseconds.
#[must_use]
pub fn local_copy_ns(bytes: u64) -> u64 {
    LAUNCH_NS.saturating_add(transfer_ns(bytes, LOCAL_BYTES_PER_SECOND))
}

/// How long a copy over `link` occupies its stream, in nanoseconds.
#[must_use]
pub fn peer_copy_ns(link: &Link, bytes: u64) -> u64 {
    LAUNCH_NS
        .saturating_add(link.latency_ns)
        .saturating_add(transfer_ns(bytes, link.bytes_per_second))
}

fn allocation_ns(bytes: u64) -> u64 {
    let slope = (u128::from(bytes) * u128::from(ALLOCATION_NS_PER_MIB)) >> 20;
    ALLOCATION_BASE_NS.saturating_add(u64::try_from(slope).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::bytes::{GIB, MIB};

    fn pair_us(bytes: u64) -> u64 {
        (host_ns(Call::Allocate, bytes) + host_ns(Call::Free, bytes)) / 1_000
    }

    #[test]
    fn an_allocate_and_free_pair_costs_what_the_h200_measured() {
        assert!((63..=65).contains(&pair_us(MIB)), "{}", pair_us(MIB));
        assert!((1_050..=1_070).contains(&pair_us(GIB)), "{}", pair_us(GIB));
    }

    #[test]
    fn a_large_peer_copy_reaches_the_measured_bandwidth() {
        let link = Link::nvlink();
        let ns = peer_copy_ns(&link, 16 * GIB);
        let megabytes_per_second = u128::from(16 * GIB) * 1_000 / u128::from(ns);
        assert!(
            (396_000..=397_000).contains(&megabytes_per_second),
            "{megabytes_per_second}"
        );
    }

    #[test]
    fn costs_stay_in_range_at_the_ends() {
        assert_eq!(transfer_ns(0, 0), 0);
        assert_eq!(transfer_ns(u64::MAX, 0), u64::MAX);
        assert!(host_ns(Call::Allocate, u64::MAX) > 0);
    }
}
