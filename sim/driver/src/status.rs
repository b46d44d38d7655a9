//! The codes with which functions answer: CUDA's and HIP's, which agree in number where both have
//! one.

use std::ffi::CStr;

use ds4_engine::backend::BackendError;

/// An answer other than success, or [`Status::SUCCESS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

/// What a function has to say: nothing, or why not.
pub(crate) type Outcome = Result<(), Status>;

/// One row for each code: the constant, the code, both names and the sentence.
macro_rules! statuses {
    ($($constant:ident = $code:literal, $cuda:literal, $hip:literal, $sentence:literal;)*) => {
        #[allow(clippy::allow_attributes, dead_code, reason = "a library needs the codes of its own interface")]
        impl Status {
            $(pub(crate) const $constant: Self = Self($code);)*

            /// CUDA's name, HIP's name and the sentence that both give.
            pub(crate) fn texts(self) -> Option<[&'static CStr; 3]> {
                match self.0 {
                    $($code => Some([$cuda, $hip, $sentence]),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"hipSuccess", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"hipErrorInvalidValue", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"hipErrorOutOfMemory", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"hipErrorNotInitialized", c"initialization error";
    DEVICE_UNAVAILABLE = 46, c"CUDA_ERROR_DEVICE_UNAVAILABLE", c"hipErrorLaunchFailure", c"the device is busy or unavailable";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"hipErrorNoDevice", c"no device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"hipErrorInvalidDevice", c"invalid device ordinal";
    INVALID_IMAGE = 200, c"CUDA_ERROR_INVALID_IMAGE", c"hipErrorInvalidImage", c"device kernel image is invalid";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"hipErrorInvalidContext", c"invalid device context";
    PEER_ACCESS_UNSUPPORTED = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"hipErrorPeerAccessUnsupported", c"peer access is not supported between these two devices";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"hipErrorInvalidHandle", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"hipErrorNotFound", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"hipErrorNotReady", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"hipErrorIllegalAddress", c"an illegal memory access was encountered";
    PEER_ACCESS_ALREADY_ENABLED = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", c"hipErrorPeerAccessAlreadyEnabled", c"peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", c"hipErrorPeerAccessNotEnabled", c"peer access has not been enabled";
    CONTEXT_IS_DESTROYED = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"hipErrorContextIsDestroyed", c"context is destroyed";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"hipErrorHostMemoryAlreadyRegistered", c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"hipErrorHostMemoryNotRegistered", c"pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"hipErrorLaunchFailure", c"unspecified launch failure";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"hipErrorNotSupported", c"operation not supported by the simulated driver";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"hipErrorUnknown", c"unknown error";
}

/// The model names its errors in words; these are the codes that a driver has for them.
impl From<BackendError> for Status {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::OutOfMemory { .. } => Self::OUT_OF_MEMORY,
            BackendError::Unsupported { .. } => Self::NOT_SUPPORTED,
            BackendError::DeviceLost { detail, .. } if detail.contains("error 700") => {
                Self::ILLEGAL_ADDRESS
            }
            BackendError::DeviceLost { detail, .. } if detail.contains("error 46") => {
                Self::DEVICE_UNAVAILABLE
            }
            BackendError::DeviceLost { .. } => Self::LAUNCH_FAILED,
            BackendError::Driver { detail, .. } => {
                let begins = |with: &str| detail.starts_with(with);
                if begins("invalid value") || begins("invalid address") {
                    Self::INVALID_VALUE
                } else if begins("invalid handle") {
                    Self::INVALID_HANDLE
                } else if begins("invalid device") {
                    Self::INVALID_DEVICE
                } else if detail.contains("addresses are used up") {
                    Self::OUT_OF_MEMORY
                } else {
                    Self::UNKNOWN
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ds4_engine::backend::{Backend, EventId, PageId};
    use ds4_engine::device::{DeviceAddress, DeviceId, DeviceMask, StreamId};
    use ds4_kernels::Launch;
    use ds4_sim::{FaultPlan, Instruments, SimBackend, SimConfig};

    /// The code of an allocation under a fault.
    fn code(kind: &str) -> Status {
        let sim = SimBackend::new(SimConfig::uniform(1, 1 << 30)).unwrap();
        let plan = format!(r#"{{"seed":1,"faults":[{{"at":"allocate","kind":"{kind}"}}]}}"#);
        let plan = FaultPlan::from_json(plan.as_bytes(), "plan").unwrap();
        sim.set_faults(plan).unwrap();
        let device = DeviceId::new(0).unwrap();
        sim.allocate(device, 1).unwrap_err().into()
    }

    #[test]
    fn each_fault_has_the_code_that_a_driver_gives() {
        assert_eq!(code("oom"), Status::OUT_OF_MEMORY);
        assert_eq!(code("fail"), Status::UNKNOWN);
        assert_eq!(code("sticky"), Status::ILLEGAL_ADDRESS);
        assert_eq!(code("lost"), Status::DEVICE_UNAVAILABLE);
    }

    /// Codes are found in the model's sentences: each of these fails when its sentence changes.
    #[test]
    fn misuse_has_the_code_that_a_driver_gives() {
        const PAGE: u64 = 2 << 20;
        let sim = SimBackend::new(SimConfig::uniform(1, 1 << 30)).unwrap();
        let (gpu, absent) = (DeviceId::new(0).unwrap(), DeviceId::new(7).unwrap());
        let base = sim.reserve(gpu, 4 * PAGE).unwrap();
        let place = |page: u64| DeviceAddress(base.0 + page * PAGE);
        let (mapped, free) = (sim.create_page(gpu).unwrap(), sim.create_page(gpu).unwrap());
        sim.map_closed(gpu, base, mapped).unwrap();
        let (nowhere, alone) = (DeviceAddress(1), DeviceMask::EMPTY);
        let (stream, event) = (StreamId(9), EventId(9));
        let launch = Launch::Fill {
            to: 1 << 20,
            bytes: 1,
            value: 0,
        };
        let none = |outcome: Result<DeviceAddress, BackendError>| outcome.map(|_| ());
        let cases = [
            (none(sim.allocate(gpu, 0)), Status::INVALID_VALUE),
            (sim.free(gpu, nowhere), Status::INVALID_VALUE),
            (none(sim.reserve(gpu, 3)), Status::INVALID_VALUE),
            (sim.release(gpu, base, PAGE), Status::INVALID_VALUE),
            (sim.release(gpu, base, 4 * PAGE), Status::INVALID_VALUE),
            (sim.destroy_page(gpu, PageId(99)), Status::INVALID_VALUE),
            (sim.destroy_page(gpu, mapped), Status::INVALID_VALUE),
            (
                sim.map(gpu, DeviceAddress(base.0 + 1), free, alone),
                Status::INVALID_VALUE,
            ),
            (sim.map(gpu, place(4), free, alone), Status::INVALID_VALUE),
            (sim.map(gpu, base, free, alone), Status::INVALID_VALUE),
            (
                sim.map(gpu, place(1), PageId(99), alone),
                Status::INVALID_VALUE,
            ),
            (sim.map(gpu, place(1), mapped, alone), Status::INVALID_VALUE),
            (sim.set_readers(gpu, place(1), alone), Status::INVALID_VALUE),
            (sim.unmap(gpu, place(1)), Status::INVALID_VALUE),
            (sim.write(gpu, nowhere, &[1]), Status::INVALID_VALUE),
            (sim.write(gpu, base, &[1]), Status::INVALID_VALUE),
            (sim.synchronize(gpu, stream), Status::INVALID_HANDLE),
            (
                sim.destroy_stream(gpu, StreamId::DEFAULT),
                Status::INVALID_HANDLE,
            ),
            (sim.wait_event(gpu, event), Status::INVALID_HANDLE),
            (sim.free(absent, nowhere), Status::INVALID_DEVICE),
            (
                sim.peer_access(gpu, absent).map(|_| ()),
                Status::INVALID_DEVICE,
            ),
            (none(sim.reserve(gpu, 1 << 44)), Status::OUT_OF_MEMORY),
            (sim.launch(gpu, StreamId::DEFAULT, &launch), Status::UNKNOWN),
        ];
        for (outcome, status) in cases {
            let error = outcome.unwrap_err();
            assert_eq!(Status::from(error.clone()), status, "{error}");
        }
    }
}
