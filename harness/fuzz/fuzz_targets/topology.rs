//! Any text gives a machine or an error, and what is written for a machine reads back as it.
#![no_main]

use ds4_sim::Topology;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(topology) = Topology::from_toml(text, "machine.toml") {
        // What is written for a machine must describe the same machine again.
        let again = Topology::from_toml(&topology.to_toml(), "again.toml");
        assert_eq!(again.map(|again| again.config), Ok(topology.config));
    }
});
