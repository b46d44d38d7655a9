//! Why a call did not do what it should, with the number that C sees.

use std::ffi::c_int;
use std::fmt;

use ds4_engine::alloc::{AllocError, CopyError, FreeError, InitError, RefusalCause};
use ds4_engine::backend::BackendError;
use ds4_engine::backend::driver::OpenError;

use crate::torch::PLACEMENT;
use crate::types::{
    DS4_ALREADY_INITIALIZED, DS4_DOUBLE_FREE, DS4_DRIVER_ERROR, DS4_FOREIGN_POINTER,
    DS4_INTERIOR_POINTER, DS4_INTERNAL_ERROR, DS4_INVALID_ARGUMENT, DS4_NO_DEVICE,
    DS4_NOT_INITIALIZED, DS4_REFUSED,
};

/// Why a call failed. Kept as it came: the sentence is written only for who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NotInitialized,
    AlreadyInitialized,
    Argument(String),
    NoDevice(String),
    /// The driver is there and does not serve.
    Driver(String),
    Init(InitError),
    Alloc(AllocError),
    Free(FreeError),
    Copy(CopyError),
    Backend(BackendError),
    /// A device refused for memory, and so did those that lend it theirs.
    Lending {
        own: Box<Self>,
        lender: Box<Self>,
    },
    Panic,
}

impl Failure {
    pub(crate) fn status(&self) -> c_int {
        match self {
            Self::NotInitialized => DS4_NOT_INITIALIZED,
            Self::AlreadyInitialized => DS4_ALREADY_INITIALIZED,
            Self::Argument(_) => DS4_INVALID_ARGUMENT,
            Self::NoDevice(_) | Self::Init(InitError::NoDevice) => DS4_NO_DEVICE,
            Self::Init(InitError::Backend(_)) | Self::Backend(_) | Self::Driver(_) => {
                DS4_DRIVER_ERROR
            }
            Self::Init(_) => DS4_INVALID_ARGUMENT,
            Self::Alloc(AllocError::Refused(_)) => DS4_REFUSED,
            Self::Alloc(_) => DS4_INVALID_ARGUMENT,
            Self::Free(error) | Self::Copy(CopyError::NotLive(error)) => status_of_free(error),
            Self::Copy(CopyError::OutOfBounds { .. } | CopyError::Overlap) => DS4_INVALID_ARGUMENT,
            Self::Copy(CopyError::Backend(_)) => DS4_DRIVER_ERROR,
            Self::Lending { own, .. } => own.status(),
            Self::Panic => DS4_INTERNAL_ERROR,
        }
    }

    /// Whether freeing memory could help, which is what "out of memory" promises.
    pub(crate) fn is_memory(&self) -> bool {
        if let Self::Lending { own, .. } = self {
            return own.is_memory();
        }
        let Self::Alloc(AllocError::Refused(refusal)) = self else {
            return false;
        };
        let RefusalCause::Tried(candidates) = &refusal.cause else {
            return false;
        };
        candidates
            .iter()
            .any(|candidate| candidate.reason.is_memory())
    }
}

fn status_of_free(error: &FreeError) -> c_int {
    match error {
        FreeError::Null | FreeError::UnknownStream { .. } => DS4_INVALID_ARGUMENT,
        FreeError::Foreign { .. } => DS4_FOREIGN_POINTER,
        FreeError::Interior { .. } => DS4_INTERIOR_POINTER,
        FreeError::DoubleFree | FreeError::StaleHandle => DS4_DOUBLE_FREE,
        FreeError::Backend(_) => DS4_DRIVER_ERROR,
        FreeError::OtherAllocator | FreeError::NoAddressTable => DS4_INTERNAL_ERROR,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialized => {
                f.write_str("ds4 is not initialized; call ds4_gpu_mgpu_init first")
            }
            Self::AlreadyInitialized => {
                f.write_str("ds4 is initialized already; call ds4_gpu_mgpu_shutdown first")
            }
            Self::Argument(what) | Self::NoDevice(what) | Self::Driver(what) => f.write_str(what),
            Self::Init(error) => error.fmt(f),
            Self::Alloc(error) => error.fmt(f),
            Self::Free(error) => error.fmt(f),
            Self::Copy(error) => error.fmt(f),
            Self::Backend(error) => error.fmt(f),
            Self::Lending { own, lender } => {
                write!(f, "{own}; elsewhere, by {PLACEMENT}: {lender}")
            }
            Self::Panic => f.write_str("a bug of ds4: it panicked, as standard error says"),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let text = error.to_string();
        if is_of_driver(&error) {
            Self::Driver(text)
        } else {
            Self::NoDevice(text)
        }
    }
}

/// Whether a driver that is there does not serve; otherwise there is none, or no such device.
pub(crate) fn is_of_driver(error: &OpenError) -> bool {
    match error {
        OpenError::NoStart { .. } | OpenError::Unavailable { .. } | OpenError::Device { .. } => {
            true
        }
        OpenError::NoDriver { .. }
        | OpenError::WrongLibrary { .. }
        | OpenError::NoDevice { .. }
        | OpenError::UnknownDevice { .. } => false,
    }
}

impl From<InitError> for Failure {
    fn from(error: InitError) -> Self {
        Self::Init(error)
    }
}

impl From<AllocError> for Failure {
    fn from(error: AllocError) -> Self {
        Self::Alloc(error)
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Self {
        Self::Free(error)
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

#[cfg(test)]
mod tests {
    use ds4_engine::backend::driver::Vendor;
    use ds4_engine::device::Ordinal;

    use super::*;

    #[test]
    fn a_driver_that_does_not_serve_is_no_missing_device() {
        let (vendor, path) = (Vendor::Cuda, std::path::PathBuf::new());
        let (ordinal, detail) = (Ordinal(2), "busy".to_owned());
        let absent = [
            OpenError::NoDriver { vendor },
            OpenError::NoDevice {
                vendor,
                path: path.clone(),
            },
            OpenError::UnknownDevice {
                ordinal,
                count: 1,
                vendor,
            },
        ];
        for error in absent {
            assert_eq!(Failure::from(error).status(), DS4_NO_DEVICE);
        }
        let failing = [
            OpenError::NoStart {
                vendor,
                path,
                detail: detail.clone(),
            },
            OpenError::Unavailable { ordinal, detail },
        ];
        for error in failing {
            assert_eq!(Failure::from(error).status(), DS4_DRIVER_ERROR);
        }
    }
}
