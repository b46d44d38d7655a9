//! Where the two drivers differ.

use std::fmt;

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// The CUDA driver API.
    Cuda,
    /// The HIP runtime.
    Hip,
}

/// The attributes of a device that ds4 asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    ComputeMajor,
    ComputeMinor,
    VirtualMemory,
}

impl Vendor {
    /// The name by which users ask for the backend.
    #[must_use]
    pub const fn backend_name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
        }
    }

    /// The library that is loaded.
    pub(super) const fn library(self) -> &'static str {
        match self {
            Self::Cuda => "libcuda.so.1",
            Self::Hip => "libamdhip64.so",
        }
    }

    /// What installs it.
    pub(super) const fn package(self) -> &'static str {
        match self {
            Self::Cuda => "the NVIDIA driver",
            Self::Hip => "the ROCm runtime",
        }
    }

    /// The environment variables that hide and renumber devices.
    #[must_use]
    pub const fn visibility(self) -> &'static [&'static str] {
        match self {
            Self::Cuda => &["CUDA_VISIBLE_DEVICES"],
            Self::Hip => &["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"],
        }
    }

    /// The number of an attribute: `CUdevice_attribute` in cuda.h; `hipDeviceAttribute_t`, whose
    /// numbers here are the same in HIP 5.4, 6 and 7.
    pub(super) const fn attribute(self, attribute: Attribute) -> u32 {
        use cudarc::driver::sys::CUdevice_attribute_enum as Cuda;
        use hip_sys::hiprt::hipDeviceAttribute_t as Hip;
        match (self, attribute) {
            (Self::Cuda, Attribute::ComputeMajor) => {
                Cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as u32
            }
            (Self::Cuda, Attribute::ComputeMinor) => {
                Cuda::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as u32
            }
            (Self::Cuda, Attribute::VirtualMemory) => {
                Cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as u32
            }
            (Self::Hip, Attribute::ComputeMajor) => {
                Hip::hipDeviceAttributeComputeCapabilityMajor as u32
            }
            (Self::Hip, Attribute::ComputeMinor) => {
                Hip::hipDeviceAttributeComputeCapabilityMinor as u32
            }
            (Self::Hip, Attribute::VirtualMemory) => {
                Hip::hipDeviceAttributeVirtualMemoryManagementSupported as u32
            }
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "CUDA",
            Self::Hip => "HIP",
        })
    }
}
