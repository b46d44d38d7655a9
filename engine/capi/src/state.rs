//! The one allocator of the process: opened once, read by every call, closed when no call runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::failure::Failure;
use crate::instance::Instance;

/// How many threads read the state without sharing a cache line.
const SHARDS: usize = 16;

/// A copy of the state; a line of its own, and the one that processors fetch with it.
#[repr(align(128))]
struct Shard(RwLock<Option<Arc<Instance>>>);

/// Each thread reads one shard; who changes the state locks all of them, in order.
static STATE: [Shard; SHARDS] = [const { Shard(RwLock::new(None)) }; SHARDS];

/// Held while the allocator is opened or closed.
static CHANGE: Mutex<()> = Mutex::new(());

thread_local! {
    /// The shard of this thread; [`SHARDS`] before its first call.
    static SHARD: Cell<usize> = const { Cell::new(SHARDS) };
}

#[inline]
fn shard() -> &'static Shard {
    let number = SHARD.try_with(Cell::get).unwrap_or(0);
    STATE.get(number).unwrap_or_else(|| assign())
}

#[cold]
fn assign() -> &'static Shard {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    let _ = SHARD.try_with(|shard| shard.set(number));
    STATE.get(number).unwrap_or(&STATE[0])
}

/// Runs `work` on the allocator, which stays open until it returns.
#[inline]
pub(crate) fn with<T>(work: impl FnOnce(&Instance) -> Result<T, Failure>) -> Result<T, Failure> {
    let state = shard().0.read().unwrap_or_else(PoisonError::into_inner);
    match &*state {
        Some(instance) => work(instance),
        None => Err(Failure::NotInitialized),
    }
}

fn change() -> MutexGuard<'static, ()> {
    CHANGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the allocator.
pub(crate) fn open(make: impl FnOnce() -> Result<Instance, Failure>) -> Result<(), Failure> {
    let _changing = change();
    if with(|_| Ok(())).is_ok() {
        return Err(Failure::AlreadyInitialized);
    }
    let instance = Arc::new(make()?);
    for shard in &STATE {
        let mut state = shard.0.write().unwrap_or_else(PoisonError::into_inner);
        *state = Some(Arc::clone(&instance));
    }
    Ok(())
}

/// Closes the allocator once no call runs any more; calls that come later find none.
pub(crate) fn close() -> Result<(), Failure> {
    let _changing = change();
    let mut last = None;
    for shard in &STATE {
        let mut state = shard.0.write().unwrap_or_else(PoisonError::into_inner);
        last = state.take().or(last);
    }
    // The shards held every other reference, so that this one is the last.
    match last.and_then(Arc::into_inner) {
        Some(instance) => instance.close(),
        None => Err(Failure::NotInitialized),
    }
}
