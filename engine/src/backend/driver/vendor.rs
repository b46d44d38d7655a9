//! Names and numbers in which the two drivers differ.

use std::fmt;

/// Whose driver it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// The CUDA driver API.
    Cuda,
    /// The HIP runtime.
    Hip,
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
    pub(super) const fn file_name(self) -> &'static str {
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

    /// The attribute of devices that can map pages: `CUdevice_attribute` in cuda.h;
    /// `hipDeviceAttribute_t`, whose number here is the same in HIP 5.4, 6 and 7.
    pub(super) const fn virtual_memory(self) -> u32 {
        use cudarc::driver::sys::CUdevice_attribute_enum as Cuda;
        use hip_sys::hiprt::hipDeviceAttribute_t as Hip;
        match self {
            Self::Cuda => Cuda::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as u32,
            Self::Hip => Hip::hipDeviceAttributeVirtualMemoryManagementSupported as u32,
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
