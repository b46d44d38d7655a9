//! What crosses the library's interface by value: `nccl.h` of NCCL 2.14, which every later version of
//! it and RCCL take too.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;

/// `NCCL_UNIQUE_ID_BYTES`.
pub const ID_BYTES: usize = 128;

/// `ncclUniqueId`, which travels from rank 0 to the others.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; ID_BYTES]);

/// `ncclConfig_t` as version 2.14 had it: fields of later versions are defaults for whoever says so.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    /// Calls return before their work is done.
    pub(super) const NON_BLOCKING: Self = Self {
        size: size_of::<Self>(),
        magic: 0xcafe_beef,
        version: OLDEST,
        blocking: 0,
    };
}

/// The first version with a configuration, and with it calls that do not block.
pub(super) const OLDEST: u32 = 21_400;

const _: () = assert!(size_of::<UniqueId>() == ID_BYTES && align_of::<UniqueId>() == 1);
const _: () = assert!(size_of::<c_char>() == 1 && size_of::<Config>() == 24);
const _: () = assert!(offset_of!(Config, magic) == 8 && offset_of!(Config, version) == 12);
const _: () = assert!(offset_of!(Config, blocking) == 16);

/// `ncclSuccess`.
pub(super) const SUCCESS: u32 = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: u32 = 7;
/// `ncclFloat32`.
pub(super) const FLOAT32: u32 = 7;
/// `ncclSum`.
pub(super) const SUM: u32 = 0;

/// A version as people write it. The code's form changed with 2.9.
pub(super) fn version_text(code: u32) -> String {
    let (major, minor, patch) = if code < 10_000 {
        (code / 1000, code % 1000 / 100, code % 100)
    } else {
        (code / 10_000, code % 10_000 / 100, code % 100)
    };
    format!("{major}.{minor}.{patch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_forms_read_as_people_write_them() {
        assert_eq!(version_text(2804), "2.8.4");
        assert_eq!(version_text(21_405), "2.14.5");
        assert_eq!(version_text(22_703), "2.27.3");
    }
}
