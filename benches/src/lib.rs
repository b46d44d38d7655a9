//! Shared workloads of the benchmarks.
#![forbid(unsafe_code)]
