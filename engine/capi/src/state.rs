//! The one allocator of the process: opened once, read by every call, closed when no call runs.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::calls::{self, Call};
use crate::failure::Failure;
use crate::instance::Instance;

/// The open allocator, from a `Box`; null if there is none.
static CURRENT: AtomicPtr<Instance> = AtomicPtr::new(ptr::null_mut());

/// Held while the allocator is opened or closed.
static CHANGE: Mutex<()> = Mutex::new(());

/// Runs `work` on the allocator, which stays open until it returns.
#[inline]
pub(crate) fn with<T>(work: impl FnOnce(&Instance) -> Result<T, Failure>) -> Result<T, Failure> {
    let _call = Call::enter();
    let current = CURRENT.load(Ordering::SeqCst);
    // SAFETY: it is null or from a `Box` that `close` takes apart only after its `wait`, that is
    // not while the call which loaded it runs.
    match unsafe { current.as_ref() } {
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
    if !CURRENT.load(Ordering::SeqCst).is_null() {
        return Err(Failure::AlreadyInitialized);
    }
    let instance = Box::new(make()?);
    calls::prepare();
    CURRENT.store(Box::into_raw(instance), Ordering::SeqCst);
    Ok(())
}

/// Closes the allocator once no call runs any more; calls that come later find none.
///
/// # Errors
/// [`Failure::NotInitialized`]; [`Failure::Driver`] where the system refuses the fence that it had
/// granted, and then the allocator stays open; or what closing it reports.
pub(crate) fn close() -> Result<(), Failure> {
    close_after(calls::wait)
}

fn close_after(wait: impl FnOnce() -> Result<(), Errno>) -> Result<(), Failure> {
    let _changing = change();
    let current = CURRENT.swap(ptr::null_mut(), Ordering::SeqCst);
    if current.is_null() {
        return Err(Failure::NotInitialized);
    }
    if let Err(errno) = wait() {
        // Nobody knows who still uses it: it stays, so that no second one is opened beside it.
        CURRENT.store(current, Ordering::SeqCst);
        return Err(Failure::Driver(format!("membarrier failed: {errno}")));
    }
    // SAFETY: it came from a `Box`, no call sees it any more, and only one caller swaps it out.
    let instance = unsafe { Box::from_raw(current) };
    instance.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use ds4_engine::alloc::{AllocatorConfig, Request};
    use ds4_engine::device::Ordinal;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    fn instance() -> Result<Instance, Failure> {
        Machine::find(Some("sim"), Some("2xh200"))?
            .open(&[Ordinal(0), Ordinal(1)], AllocatorConfig::default())
    }

    /// Held by each test: there is one allocator.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn an_allocator_that_cannot_be_closed_stays_the_only_one() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        open(instance).unwrap();
        let refused = close_after(|| Err(Errno::PERM));
        assert!(matches!(refused, Err(Failure::Driver(_))), "{refused:?}");
        assert_eq!(open(instance), Err(Failure::AlreadyInitialized));
        assert_eq!(with(|_| Ok(())), Ok(()));
        close().unwrap();
        assert_eq!(close(), Err(Failure::NotInitialized));
    }

    #[test]
    fn calls_find_the_allocator_whole_or_not_at_all_while_it_opens_and_closes() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (over, served) = (AtomicBool::new(false), AtomicU64::new(0));
        let call = || {
            with(|instance| {
                let block = instance.allocator.allocate(&Request::new(4096))?;
                thread::yield_now();
                Ok(instance.allocator.free(block.handle)?)
            })
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        match call() {
                            Ok(()) => _ = served.fetch_add(1, Ordering::Relaxed),
                            Err(failure) => assert_eq!(failure, Failure::NotInitialized),
                        }
                    }
                });
            }
            for _ in 0..30 {
                open(instance).unwrap();
                assert_eq!(open(instance), Err(Failure::AlreadyInitialized));
                // A thread of its own, whose counter a later one takes over.
                scope.spawn(|| call().unwrap()).join().unwrap();
                let before = served.load(Ordering::Relaxed);
                while served.load(Ordering::Relaxed) < before + 10 {
                    thread::yield_now();
                }
                close().unwrap();
                assert_eq!(close(), Err(Failure::NotInitialized));
            }
            over.store(true, Ordering::Relaxed);
        });
        let threads = calls::count();
        assert!((4..=8).contains(&threads), "{threads} counters");
    }
}
