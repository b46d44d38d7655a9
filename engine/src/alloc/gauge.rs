//! What is known of a device without its lock: how full it is, and what is sure not to fit.
//!
//! Writers hold the device's lock, readers hold nothing. A reader may act on figures that are a
//! moment old; what it must never do is refuse a request although a free that made room happened
//! before it. That holds because a free clears the mark before it returns, and whoever learned of
//! the free sees the cleared mark.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// No size is known not to fit.
const NOTHING_KNOWN: u64 = u64::MAX;

/// The figures of one device, apart from the others' cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Gauge {
    used_bytes: AtomicU64,
    /// Requests of this size or more do not fit until something is freed.
    full_from_bytes: AtomicU64,
    /// The largest request that would have fitted then.
    largest_free_bytes: AtomicU64,
    /// Refusals after which another candidate was tried, and those that ended a request.
    passed_on: AtomicU64,
    ended: AtomicU64,
}

impl Gauge {
    pub(super) fn new() -> Self {
        Self {
            used_bytes: AtomicU64::new(0),
            full_from_bytes: AtomicU64::new(NOTHING_KNOWN),
            largest_free_bytes: AtomicU64::new(0),
            passed_on: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    /// Bytes of live blocks.
    #[inline]
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Under the lock: a block was taken.
    #[inline]
    pub(super) fn taken(&self, used_bytes: u64) {
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
    }

    /// Under the lock: memory was given back, or may have become reusable.
    #[inline]
    pub(super) fn freed(&self, used_bytes: u64) {
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.full_from_bytes.store(NOTHING_KNOWN, Ordering::Release);
    }

    /// Under the lock: nothing is held back, and `asked_bytes` does not fit.
    pub(super) fn full(&self, asked_bytes: u64, largest_free_bytes: u64) {
        self.largest_free_bytes
            .store(largest_free_bytes, Ordering::Relaxed);
        self.full_from_bytes.store(asked_bytes, Ordering::Release);
    }

    /// The largest request that would fit, if `asked_bytes` is known not to.
    #[inline]
    pub(super) fn refuses(&self, asked_bytes: u64) -> Option<u64> {
        (asked_bytes >= self.full_from_bytes.load(Ordering::Acquire))
            .then(|| self.largest_free_bytes.load(Ordering::Relaxed))
    }

    /// A request was refused here; `ends` if no other candidate is left.
    #[inline]
    pub(super) fn count_refusal(&self, ends: bool) {
        let counter = if ends { &self.ended } else { &self.passed_on };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Refusals of this device, and those of them that ended a request.
    pub(super) fn refusals(&self) -> (u64, u64) {
        let ended = self.ended.load(Ordering::Relaxed);
        (ended + self.passed_on.load(Ordering::Relaxed), ended)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// A pool of 2 units behind a lock, with a gauge beside it, as a device has them.
    struct Device {
        gauge: Gauge,
        used: Mutex<u64>,
    }

    const BUDGET: u64 = 2;

    impl Device {
        fn allocate(&self, bytes: u64) -> bool {
            if self.gauge.refuses(bytes).is_some() {
                return false;
            }
            let mut used = self.used.lock().unwrap();
            if *used + bytes > BUDGET {
                self.gauge.full(bytes, BUDGET - *used);
                return false;
            }
            *used += bytes;
            self.gauge.taken(*used);
            true
        }

        fn free(&self, bytes: u64) {
            let mut used = self.used.lock().unwrap();
            *used -= bytes;
            self.gauge.freed(*used);
        }
    }

    #[test]
    fn loom_a_free_that_happened_before_is_never_refused() {
        loom::model(|| {
            let device = Arc::new(Device {
                gauge: Gauge::new(),
                used: Mutex::new(0),
            });
            assert!(device.allocate(2));
            let other = Arc::clone(&device);
            let refused = thread::spawn(move || {
                // Marks the device as full, before or after the free.
                if other.allocate(1) {
                    other.free(1);
                }
            });
            device.free(2);
            // This thread's own free happened before: only the other's one unit may be missing.
            assert!(device.allocate(1));
            device.free(1);
            refused.join().unwrap();
            assert!(device.allocate(2));
        });
    }

    #[test]
    fn loom_a_reader_that_learned_of_a_free_sees_room() {
        loom::model(|| {
            let device = Arc::new(Device {
                gauge: Gauge::new(),
                used: Mutex::new(0),
            });
            assert!(device.allocate(2));
            assert!(!device.allocate(1));
            let told = Arc::new(AtomicU64::new(0));
            let (other, tell) = (Arc::clone(&device), Arc::clone(&told));
            let freeing = thread::spawn(move || {
                other.free(2);
                tell.store(1, Ordering::Release);
            });
            if told.load(Ordering::Acquire) == 1 {
                assert!(device.allocate(2));
            }
            freeing.join().unwrap();
        });
    }
}
