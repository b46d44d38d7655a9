//! Which threads are inside a call, so that shutting down can wait for them.
//!
//! Each thread counts its own calls on a line of its own. Entering must be seen by who waits, or
//! see what the waiter stored before: that takes a fence on both sides. Calls are many and waits
//! are few, so the fence of the calls is bought by the waiter, who makes the system interrupt every
//! running thread (`membarrier(2)`); where the system has no such call, each thread pays its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{MembarrierCommand, membarrier};

/// One thread's count, apart from the others' cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Counter(AtomicUsize);

/// The counters of all threads, and those whose threads have ended.
struct Counters {
    all: Vec<&'static Counter>,
    spare: Vec<&'static Counter>,
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters {
    all: Vec::new(),
    spare: Vec::new(),
});

/// For threads at their end, whose own counter is given back already.
static LATE: Counter = Counter(AtomicUsize::new(0));

/// Whether the waiter fences for the callers.
static WAITER_FENCES: AtomicBool = AtomicBool::new(false);

/// Gives the counter to a later thread when its own ends.
struct Lease(&'static Counter);

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = OWN.try_with(|own| own.set(None));
        let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
        counters.spare.push(self.0);
    }
}

thread_local! {
    static OWN: Cell<Option<&'static Counter>> = const { Cell::new(None) };
    static LEASE: Lease = Lease(lease());
}

fn lease() -> &'static Counter {
    let mut counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(counter) = counters.spare.pop() {
        return counter;
    }
    // As long as the process: a waiter may look at it at any time. There are never more than
    // threads that lived at once.
    let counter: &'static Counter = Box::leak(Box::new(Counter(AtomicUsize::new(0))));
    counters.all.push(counter);
    counter
}

#[cold]
fn first_call() -> Option<&'static Counter> {
    let counter = LEASE.try_with(|lease| lease.0).ok();
    let _ = OWN.try_with(|own| own.set(counter));
    counter
}

/// A call that runs.
#[derive(Debug)]
pub(crate) struct Call {
    counter: &'static Counter,
    fenced: bool,
}

impl Call {
    /// Enters: what is loaded after this stays as long as the call, if the waiter stored its end
    /// before [`wait`].
    #[inline]
    pub(crate) fn enter() -> Self {
        let own = OWN.try_with(Cell::get).ok().flatten().or_else(first_call);
        if let Some(counter) = own
            && WAITER_FENCES.load(Ordering::Relaxed)
        {
            // Nobody else writes this counter.
            let calls = counter.0.load(Ordering::Relaxed);
            counter.0.store(calls + 1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            return Self {
                counter,
                fenced: false,
            };
        }
        let counter = own.unwrap_or(&LATE);
        counter.0.fetch_add(1, Ordering::SeqCst);
        Self {
            counter,
            fenced: true,
        }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if self.fenced {
            self.counter.0.fetch_sub(1, Ordering::Release);
        } else {
            let calls = self.counter.0.load(Ordering::Relaxed);
            self.counter.0.store(calls - 1, Ordering::Release);
        }
    }
}

/// Prepares the waiter's fence, where the system has one.
pub(crate) fn prepare() {
    if membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() {
        WAITER_FENCES.store(true, Ordering::Relaxed);
    }
}

/// Waits until every call has left that may have loaded what the caller has just replaced.
///
/// # Errors
/// The system refuses the fence that it had granted: nobody knows which calls run.
pub(crate) fn wait() -> Result<(), rustix::io::Errno> {
    if WAITER_FENCES.load(Ordering::Relaxed) {
        membarrier(MembarrierCommand::PrivateExpedited)?;
    }
    let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = counters.all.clone();
    drop(counters);
    for counter in all.into_iter().chain([&LATE]) {
        while counter.0.load(Ordering::SeqCst) != 0 {
            // Calls end soon, and none of them tells.
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// How many counters there are.
#[cfg(test)]
pub(crate) fn count() -> usize {
    let counters = COUNTERS.lock().unwrap_or_else(PoisonError::into_inner);
    counters.all.len()
}
