//! What every exported function does: it catches panics, remembers its answer and logs it.

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crate::status::{Outcome, Status};

thread_local! {
    static LAST: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

static LOG: Mutex<Option<File>> = Mutex::new(None);

/// Defines exported functions and a table of them.
///
/// Parameters are types of [`crate::raw`] and numbers, so bodies are safe code; a body ends with an
/// [`Outcome`].
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::call::enter(stringify!($name), || $body)
            }
        )*

        /// The address of an exported function of this file.
        #[allow(clippy::allow_attributes, dead_code, reason = "HIP's files have no look-up")]
        pub(super) fn find(name: &str) -> Option<*const std::ffi::c_void> {
            match name {
                $(stringify!($name) => Some($name as *const std::ffi::c_void),)*
                _ => None,
            }
        }
    };
}
pub(crate) use export;

/// Runs the body of an exported function; returns its code.
pub(crate) fn enter(name: &str, work: impl FnOnce() -> Outcome) -> u32 {
    let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Status::UNKNOWN));
    let status = answer.err().unwrap_or(Status::SUCCESS);
    log(name, status);
    if status != Status::SUCCESS {
        LAST.set(status);
    }
    status.0
}

/// The last answer on this thread that was no success; it is forgotten if asked.
#[cfg(feature = "hip")]
pub(crate) fn last_error(forget: bool) -> Status {
    if forget {
        LAST.replace(Status::SUCCESS)
    } else {
        LAST.get()
    }
}

/// Begins a log with one line for each call: its name and its code.
pub(crate) fn log_to(file: Option<File>) {
    *LOG.lock().unwrap_or_else(PoisonError::into_inner) = file;
}

fn log(name: &str, status: Status) {
    if let Some(file) = &mut *LOG.lock().unwrap_or_else(PoisonError::into_inner) {
        // A log that cannot be written must not end the program under test.
        let _ = writeln!(file, "{name} {}", status.0);
    }
}
