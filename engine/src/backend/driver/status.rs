//! From the driver's codes to errors by what the caller can do.
//!
//! CUDA and HIP give the codes that matter here the same numbers (`CUresult` in cuda.h,
//! `hipError_t` in hip_runtime_api.h).

use crate::backend::{BackendError, OomOrigin};
use crate::device::DeviceId;

use super::table::{Functions, Status};

/// "Not ready": work before an event is still going on.
pub(super) const NOT_READY: u32 = 600;
/// Access to that peer was enabled before.
pub(super) const PEER_ACCESS_ALREADY_ENABLED: u32 = 704;
/// No device is visible.
pub(super) const NO_DEVICE: u32 = 100;
/// The device is not valid: what `hipInit` of ROCm 5 says where there is none.
pub(super) const INVALID_DEVICE: u32 = 101;
/// The device is in exclusive use, or in a state in which it takes no context.
pub(super) const DEVICE_UNAVAILABLE: u32 = 46;
const OUT_OF_MEMORY: u32 = 2;
const NOT_SUPPORTED: u32 = 801;

/// After these nothing in the context succeeds any more: an error of the hardware, or a kernel
/// that touched what it may not.
fn is_sticky(code: u32) -> bool {
    matches!(
        code,
        // Deinitialised, unavailable, uncorrectable ECC, NVLink.
        4 | 46 | 214 | 220 |
        // Illegal address, launch timeout, context destroyed.
        700 | 702 | 709 |
        // Assertion, stack, illegal instruction, misaligned, address space, counter, launch.
        710 | 714..=719
    )
}

impl Functions {
    /// The error of a call about `device` that asked for `asked_bytes`.
    pub(super) fn error(&self, device: DeviceId, asked_bytes: u64, status: Status) -> BackendError {
        let Status { call, code } = status;
        match code {
            OUT_OF_MEMORY => BackendError::OutOfMemory {
                device,
                call,
                asked_bytes,
                origin: OomOrigin::Driver,
            },
            NOT_SUPPORTED => BackendError::Unsupported { device, call },
            code if is_sticky(code) => BackendError::DeviceLost {
                device,
                call,
                detail: self.describe(code),
            },
            code => BackendError::Driver {
                device,
                call,
                detail: self.describe(code),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_codes_after_which_nothing_succeeds_are_sticky() {
        for code in [46, 214, 700, 710, 719] {
            assert!(is_sticky(code), "{code}");
        }
        for code in [
            0,
            1,
            OUT_OF_MEMORY,
            NO_DEVICE,
            NOT_READY,
            704,
            NOT_SUPPORTED,
            999,
        ] {
            assert!(!is_sticky(code), "{code}");
        }
    }
}
