//! Simulated devices behind the engine's backend trait.
#![forbid(unsafe_code)]
