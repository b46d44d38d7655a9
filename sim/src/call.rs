//! The calls of the backend trait, as data: counted, priced and named in fault plans.

use std::fmt;

/// One method of the backend trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the trait method of that name")]
pub enum Call {
    MemoryInfo,
    Allocate,
    Free,
    Reserve,
    Release,
    CreatePage,
    DestroyPage,
    Map,
    Unmap,
    CreateStream,
    DestroyStream,
    Synchronize,
    RecordEvent,
    EventDone,
    WaitEvent,
    StreamWaitEvent,
    DestroyEvent,
    Write,
    Read,
    Fill,
    CopyLocal,
    CopyPeer,
    Launch,
    PeerAccess,
}

/// The number of different calls.
pub(crate) const CALL_COUNT: usize = Call::ALL.len();

impl Call {
    /// Every call, in the order of the trait.
    pub const ALL: [Self; 24] = [
        Self::MemoryInfo,
        Self::Allocate,
        Self::Free,
        Self::Reserve,
        Self::Release,
        Self::CreatePage,
        Self::DestroyPage,
        Self::Map,
        Self::Unmap,
        Self::CreateStream,
        Self::DestroyStream,
        Self::Synchronize,
        Self::RecordEvent,
        Self::EventDone,
        Self::WaitEvent,
        Self::StreamWaitEvent,
        Self::DestroyEvent,
        Self::Write,
        Self::Read,
        Self::Fill,
        Self::CopyLocal,
        Self::CopyPeer,
        Self::Launch,
        Self::PeerAccess,
    ];

    /// The name of the trait method, as fault plans write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// The driver function that a real backend would call, as errors name it.
    #[must_use]
    pub fn driver_name(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::MemoryInfo => ("memory_info", "cuMemGetInfo"),
            Self::Allocate => ("allocate", "cuMemAlloc"),
            Self::Free => ("free", "cuMemFree"),
            Self::Reserve => ("reserve", "cuMemAddressReserve"),
            Self::Release => ("release", "cuMemAddressFree"),
            Self::CreatePage => ("create_page", "cuMemCreate"),
            Self::DestroyPage => ("destroy_page", "cuMemRelease"),
            Self::Map => ("map", "cuMemMap"),
            Self::Unmap => ("unmap", "cuMemUnmap"),
            Self::CreateStream => ("create_stream", "cuStreamCreate"),
            Self::DestroyStream => ("destroy_stream", "cuStreamDestroy"),
            Self::Synchronize => ("synchronize", "cuStreamSynchronize"),
            Self::RecordEvent => ("record_event", "cuEventRecord"),
            Self::EventDone => ("event_done", "cuEventQuery"),
            Self::WaitEvent => ("wait_event", "cuEventSynchronize"),
            Self::StreamWaitEvent => ("stream_wait_event", "cuStreamWaitEvent"),
            Self::DestroyEvent => ("destroy_event", "cuEventDestroy"),
            Self::Write => ("write", "cuMemcpyHtoD"),
            Self::Read => ("read", "cuMemcpyDtoH"),
            Self::Fill => ("fill", "cuMemsetD8Async"),
            Self::CopyLocal => ("copy_local", "cuMemcpyDtoDAsync"),
            Self::CopyPeer => ("copy_peer", "cuMemcpyPeerAsync"),
            Self::Launch => ("launch", "cuLaunchKernel"),
            Self::PeerAccess => ("peer_access", "cuDeviceCanAccessPeer"),
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }

    pub(crate) fn bit(self) -> CallSet {
        CallSet(1 << self.index())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallSet(u32);

impl CallSet {
    pub(crate) const ALL: Self = Self((1 << CALL_COUNT) - 1);

    pub(crate) fn of(calls: &[Call]) -> Self {
        Self(calls.iter().fold(0, |set, call| set | call.bit().0))
    }

    pub(crate) fn contains(self, call: Call) -> bool {
        self.0 & call.bit().0 != 0
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// How often each call was made, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; CALL_COUNT]);

impl CallCounts {
    /// How often `call` was made.
    #[must_use]
    pub fn of(&self, call: Call) -> u64 {
        self.0.get(call.index()).copied().unwrap_or(0)
    }

    /// How many calls were made in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn count(&mut self, call: Call) {
        if let Some(count) = self.0.get_mut(call.index()) {
            *count += 1;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_numbered_in_their_order_and_have_names_of_their_own() {
        for (index, call) in Call::ALL.into_iter().enumerate() {
            assert_eq!(call.index(), index);
            let same_name = Call::ALL.into_iter().filter(|c| c.name() == call.name());
            assert_eq!(same_name.count(), 1, "{call}");
        }
    }

    #[test]
    fn counts_add_up() {
        let mut counts = CallCounts::default();
        counts.count(Call::Map);
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!(
            (sum.of(Call::Map), sum.of(Call::Unmap), sum.total()),
            (2, 0, 2)
        );
    }
}
