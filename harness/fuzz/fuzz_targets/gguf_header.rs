//! Any bytes as a GGUF header, and a plan of whatever reads as one.
#![no_main]

use ds4_engine::selection::{Selection, SelectionFlags};
use ds4_harness::gguf::GgufHeader;
use ds4_harness::planning::{KvType, PlanRequest, Verdict, plan, render_text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let known = GgufHeader::read(bytes, "fuzz.gguf", Some(bytes.len() as u64));
    let unknown = GgufHeader::read(bytes, "fuzz.gguf", None);
    match (&known, &unknown) {
        // Not the metadata: a NaN there differs from itself.
        (Ok(known), Ok(unknown)) => {
            assert_eq!(known.tensors, unknown.tensors);
            assert_eq!(known.file_bytes_needed, unknown.file_bytes_needed);
        }
        (Err(error), Err(_)) => {
            assert!(error.at <= bytes.len() as u64);
            assert!(!error.to_string().contains('\n'));
        }
        _ => panic!("knowing the length changed the verdict: {known:?} {unknown:?}"),
    }
    let Ok(header) = unknown else { return };
    let flags = SelectionFlags {
        gpu_vram: Some("1M,24"),
        gpu_reserve: Some("64K"),
        ..SelectionFlags::default()
    };
    let Ok(selection) = Selection::parse(&flags, None) else {
        panic!("the flags are right")
    };
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let request = PlanRequest {
            selection: selection.clone(),
            context_tokens: None,
            kv_type,
        };
        match plan(&header, &request) {
            Ok(plan) => {
                let placed: u64 = plan
                    .devices
                    .iter()
                    .map(|device| device.load.total_bytes)
                    .sum();
                assert_eq!(placed + plan.shortfall_bytes, plan.needed_bytes);
                assert_eq!(
                    plan.shortfall_bytes > 0,
                    plan.verdict == Verdict::DoesNotFit
                );
                assert!(!render_text(&plan).contains('\u{1b}'));
            }
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
});
