//! What the targets of the ranks' protocol do with their bytes, as plain functions.
//!
//! `harness/tests/corpus.rs` replays `golden/tp/corpus` through the same ones without a fuzzer.

pub mod tp_frames;
pub mod tp_session;
pub mod tp_trust;
