//! A run with a deadline that holds even if a call of the driver never returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::Ended;
use crate::stopwatch::Stopwatch;

/// How often the wish of the user is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a run that the user wants to end may take to end by itself, in nanoseconds.
const GRACE_NS: u64 = 2_000_000_000;

/// Watches a run from a thread of its own.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    _alive: Sender<()>,
}

impl Watch {
    /// Calls `end` once `deadline_ns` have passed, or a while after `stop` was set, unless
    /// [`Watch::finish`] comes first. `end` should end the process: the run may hang.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(
        deadline_ns: u64,
        stop: Arc<AtomicBool>,
        end: impl FnOnce(Ended) + Send + 'static,
    ) -> std::io::Result<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let (alive, gone) = channel();
        let claimed = Arc::clone(&over);
        let start = Stopwatch::start();
        std::thread::Builder::new()
            .name("deadline".to_owned())
            .spawn(move || {
                let mut stopping: Option<Stopwatch> = None;
                let why = loop {
                    if gone.recv_timeout(LOOK) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                    if start.elapsed_ns() >= deadline_ns {
                        break Ended::Deadline;
                    }
                    if stop.load(Ordering::Relaxed) {
                        let since = stopping.get_or_insert_with(Stopwatch::start);
                        if since.elapsed_ns() >= GRACE_NS {
                            break Ended::Interrupted;
                        }
                    }
                };
                if !claimed.swap(true, Ordering::SeqCst) {
                    end(why);
                }
            })?;
        Ok(Self {
            over,
            _alive: alive,
        })
    }

    /// The run is over and may print. If the watch came first, this never returns: the process is
    /// about to end.
    pub fn finish(self) {
        if self.over.swap(true, Ordering::SeqCst) {
            loop {
                std::thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_NS: u64 = 600_000_000_000;

    #[test]
    fn a_run_that_hangs_is_ended_at_the_deadline() {
        let (told, hears) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        // Nothing ever calls finish, as if a call of the driver did not return.
        let _watch = Watch::start(1, stop, move |why| told.send(why).unwrap()).unwrap();
        assert_eq!(hears.recv(), Ok(Ended::Deadline));
    }

    #[test]
    fn a_run_that_does_not_stop_when_asked_is_ended() {
        let (told, hears) = channel();
        let stop = Arc::new(AtomicBool::new(true));
        let _watch = Watch::start(LONG_NS, stop, move |why| told.send(why).unwrap()).unwrap();
        assert_eq!(hears.recv(), Ok(Ended::Interrupted));
    }

    #[test]
    fn a_run_that_finishes_is_left_alone() {
        let (told, hears) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let watch = Watch::start(LONG_NS, stop, move |why| told.send(why).unwrap()).unwrap();
        watch.finish();
        // The thread ends and drops what it would have told with.
        assert!(hears.recv().is_err());
    }
}
