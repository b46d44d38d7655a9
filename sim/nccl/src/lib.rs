//! A stand-in for NCCL and RCCL on simulated devices: the functions that ds4 calls, over processes of
//! one host.
//!
//! It does the work: ranks find each other by the address in the group's name, bytes come from and go
//! to the simulated devices through their driver, and sums are of 32-bit floats in the order of the
//! ranks. It runs on nothing but a simulated driver, and `DS4_FAKE_NCCL` makes it fail (`fault.rs`).

mod comm;
mod driver;
mod fault;
mod hub;
mod interface;
