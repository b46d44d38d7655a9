//! Ctrl-C, termination and hang-up as a flag that the work looks at.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

#[cfg(unix)]
use signal_hook::consts::{SIGHUP, SIGXFSZ};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::Exit;

/// Lets the first of the signals set `stop` and a second one end the process.
///
/// A signal that the parent ignores stays ignored: `nohup` means a hang-up, and a shell without
/// job control means Ctrl-C for its background jobs.
///
/// A limit on the size of files is an error of the write that meets it, which then says so, and no
/// end of the process.
pub(crate) fn watch(stop: &Arc<AtomicBool>) -> io::Result<()> {
    #[cfg(unix)]
    flag::register(SIGXFSZ, Arc::default())?;
    for signal in wanted() {
        let code = i32::from(Exit::Interrupted.code());
        flag::register_conditional_shutdown(signal, code, Arc::clone(stop))?;
        flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

/// Lets each of the signals set `stop` and leave its number in `last`, and none end the process:
/// a child is still to be told.
pub(crate) fn watch_for_child(stop: &Arc<AtomicBool>, last: &Arc<AtomicUsize>) -> io::Result<()> {
    #[cfg(unix)]
    flag::register(SIGXFSZ, Arc::default())?;
    for signal in wanted() {
        let number = usize::try_from(signal).unwrap_or(0);
        flag::register_usize(signal, Arc::clone(last), number)?;
        flag::register(signal, Arc::clone(stop))?;
    }
    Ok(())
}

#[cfg(unix)]
fn wanted() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status");
    match status.ok().as_deref().and_then(ignored) {
        Some(ignored) => [SIGINT, SIGTERM, SIGHUP]
            .into_iter()
            .filter(|signal| ignored & (1 << (signal - 1)) == 0)
            .collect(),
        // Where the system does not say, only a hang-up is commonly ignored.
        None => vec![SIGINT, SIGTERM],
    }
}

#[cfg(not(unix))]
fn wanted() -> Vec<i32> {
    vec![SIGINT, SIGTERM]
}

/// The mask of ignored signals in Linux's status of a process: bit 0 is signal 1.
#[cfg(unix)]
fn ignored(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_is_read() {
        assert_eq!(
            ignored("Name:\tds4\nSigIgn:\t0000000000001003\n"),
            Some(0x1003)
        );
        assert_eq!(ignored("Name:\tds4\n"), None);
    }
}
