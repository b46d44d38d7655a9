//! The last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::failure::Failure;
use crate::types::DS4_OK;

struct Last {
    failure: Option<Failure>,
    /// The failure in words, once somebody asked.
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { failure: None, text: None }) };
}

/// Runs a call of the interface: a failure or a panic becomes `otherwise` and the last error.
#[inline]
pub(crate) fn guarded<T>(otherwise: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    // Locks of the engine are good after a panic: it takes them back from poison everywhere.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => {
            set(failure);
            otherwise
        }
        Err(_) => {
            set(Failure::Panic);
            otherwise
        }
    }
}

/// As [`guarded`], for calls whose result is a status.
#[inline]
pub(crate) fn status(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => DS4_OK,
        Ok(Err(failure)) => failed(failure),
        Err(_) => failed(Failure::Panic),
    }
}

#[cold]
fn failed(failure: Failure) -> c_int {
    let status = failure.status();
    set(failure);
    status
}

#[cold]
fn set(failure: Failure) {
    // Nobody is left to ask a thread that is at its end.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last {
            failure: Some(failure),
            text: None,
        };
    });
}

/// The status of this thread's last failure.
pub(crate) fn last_status() -> c_int {
    let last = LAST.try_with(|last| last.borrow().failure.as_ref().map(Failure::status));
    last.ok().flatten().unwrap_or(DS4_OK)
}

/// This thread's last failure in words, "" before the first; valid until its next one.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        let Last { failure, text } = &mut *last;
        match failure {
            Some(failure) => text
                .get_or_insert_with(|| sentence(&failure.to_string()))
                .as_ptr(),
            None => c"".as_ptr(),
        }
    });
    text.unwrap_or(c"".as_ptr())
}

/// A sentence for C; a zero byte, which only a strange driver would put there, is left out.
pub(crate) fn sentence(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_else(|_| CStr::to_owned(c"(no text)"))
}
