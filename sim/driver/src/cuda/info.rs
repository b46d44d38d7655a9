//! Initialisation, versions and the texts of errors.

use std::ffi::c_char;

use crate::call::export;
use crate::driver::Driver;
use crate::raw::Out;
use crate::status::{Outcome, Status};

/// CUDA 13.0, the version of the drivers on which the model was measured.
const DEFAULT_VERSION: u32 = 13_000;

/// Puts one of a code's texts; an unknown code has none.
fn put_text(code: u32, which: usize, out: Out<*const c_char>) -> Outcome {
    let texts = Status(code).texts();
    let text = texts.and_then(|texts| texts.get(which).copied());
    out.put(text.map_or(std::ptr::null(), |text| text.as_ptr().cast()))?;
    text.map(|_| ()).ok_or(Status::INVALID_VALUE)
}

export! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Status::INVALID_VALUE);
        }
        Driver::initialise().map(|_| ())
    }

    fn cuDriverGetVersion(version: Out<u32>) {
        // The real one answers before cuInit, without a device too.
        let set = Driver::initialise().ok().and_then(|driver| driver.version);
        version.put(set.unwrap_or(DEFAULT_VERSION))
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        put_text(code, 0, name)
    }

    fn cuGetErrorString(code: u32, sentence: Out<*const c_char>) {
        put_text(code, 2, sentence)
    }
}
