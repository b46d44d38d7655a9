//! Looking functions up by name and version.
//!
//! One name stands for several functions whose parameters differ: the version that is asked for
//! says which. Answering with the newest would call, say, `cuCtxGetDevice` of CUDA 13, which takes
//! a context, with one argument.

use std::ffi::c_void;

use crate::call::export;
use crate::raw::{Out, Text};
use crate::status::{Outcome, Status};

const FOUND: u32 = 0;
const SYMBOL_NOT_FOUND: u32 = 1;

/// The version from which a name means this function, where its suffix does not say it: the other
/// functions with a suffix took over their names in CUDA 3.2 or 4.0, before look-ups existed.
const SINCE: [(&str, i32); 8] = [
    ("cuCtxCreate_v3", 11_040),
    ("cuCtxCreate_v4", 12_050),
    ("cuCtxGetDevice_v2", 13_000),
    ("cuCtxSynchronize_v2", 13_000),
    ("cuDeviceGetUuid_v2", 11_040),
    ("cuDevicePrimaryCtxRelease_v2", 11_000),
    ("cuDevicePrimaryCtxReset_v2", 11_000),
    ("cuEventElapsedTime_v2", 12_080),
];

/// The function that a name meant in a version of CUDA, the newest first.
fn look_up(name: &str, version: i32) -> Option<*const c_void> {
    ["_v4", "_v3", "_v2", ""].iter().find_map(|suffix| {
        let name = format!("{name}{suffix}");
        let since = SINCE.iter().find(|(known, _)| *known == name);
        super::find(&name).filter(|_| since.is_none_or(|(_, since)| version >= *since))
    })
}

fn answer(name: Text, out: Out<*const c_void>, version: i32, status: Out<u32>) -> Outcome {
    match look_up(name.get()?, version) {
        Some(function) => {
            out.put(function)?;
            status.offer(FOUND);
            Ok(())
        }
        None => {
            out.put(std::ptr::null())?;
            status.offer(SYMBOL_NOT_FOUND);
            Err(Status::NOT_FOUND)
        }
    }
}

export! {
    fn cuGetProcAddress(name: Text, out: Out<*const c_void>, version: i32, _flags: u64) {
        match look_up(name.get()?, version) {
            Some(function) => out.put(function),
            None => Err(Status::NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(
        name: Text,
        out: Out<*const c_void>,
        version: i32,
        _flags: u64,
        status: Out<u32>,
    ) {
        answer(name, out, version, status)
    }

    // Tables of undocumented functions, which the CUDA runtime asks for: there are none.
    fn cuGetExportTable(out: Out<*const c_void>, _id: u64) {
        out.put(std::ptr::null())?;
        Err(Status::NOT_FOUND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(name: &str, version: i32, expected: &str) -> bool {
        let found = look_up(name, version);
        found.is_some() && found == super::super::find(expected)
    }

    #[test]
    fn a_name_means_the_function_of_the_version_that_is_asked_for() {
        assert!(is("cuCtxGetDevice", 12_080, "cuCtxGetDevice"));
        assert!(is("cuCtxGetDevice", 13_000, "cuCtxGetDevice_v2"));
        assert!(is("cuCtxCreate", 4_000, "cuCtxCreate_v2"));
        assert!(is("cuCtxCreate", 11_040, "cuCtxCreate_v3"));
        assert!(is("cuCtxCreate", 12_050, "cuCtxCreate_v4"));
        assert!(is("cuMemAlloc", 3_020, "cuMemAlloc_v2"));
        assert!(is("cuEventElapsedTime", 12_070, "cuEventElapsedTime"));
        assert!(is("cuEventElapsedTime", 12_080, "cuEventElapsedTime_v2"));
        assert!(is("cuGetProcAddress", 12_000, "cuGetProcAddress_v2"));
        assert!(look_up("cuGraphCreate", 13_000).is_none());
    }
}
