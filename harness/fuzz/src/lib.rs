//! What targets do with their bytes, as plain functions.
//!
//! `harness/tests/corpus.rs` replays `golden/tp/corpus` through those of the ranks' protocol without
//! a fuzzer.

pub mod tp_frames;
pub mod tp_session;
pub mod tp_trust;
pub mod trace;
