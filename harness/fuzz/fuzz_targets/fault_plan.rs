//! Any bytes give a fault plan or an error.
#![no_main]

use ds4_sim::FaultPlan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(plan) = FaultPlan::from_json(bytes, "plan.json") {
        // A plan that parses must also be judged against a machine without a panic.
        let _ = plan.check_devices(3);
    }
});
