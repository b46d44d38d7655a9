//! CPU references of the device kernels.
#![forbid(unsafe_code)]
