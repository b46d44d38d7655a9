//! Random histories against the suites' model: masks, sizes, alignments, streams, lifetimes,
//! faults, uneven devices, pages and slabs. A failure shrinks to a script that can be replayed.

mod common;

use common::*;
use std::sync::atomic::AtomicBool;

use ds4_harness::suite::script::{Op, Script, ScriptDevice, ScriptFault};
use ds4_harness::suite::{Replayed, replay};
use proptest::prelude::*;

fn op() -> impl Strategy<Value = Op> {
    let alloc = (
        any::<u32>(),
        prop_oneof![1_u64..4096, 1_u64..4 * MIB, 1_u64..64 * MIB],
        0_u32..22,
        0_u32..3,
        any::<bool>(),
    )
        .prop_map(|(mask, bytes, align, stream, long)| Op::Alloc {
            mask: mask & 0b1111,
            bytes,
            align: 1 << align,
            stream,
            long,
        });
    prop_oneof![
        12 => alloc,
        8 => any::<u64>().prop_map(|block| Op::Free { block }),
        1 => Just(Op::FreeAgain),
        2 => (any::<u64>(), 0_u32..3).prop_map(|(block, stream)| Op::Use { block, stream }),
        2 => (any::<u64>(), any::<u64>(), 1..MIB).prop_map(|(from, to, bytes)| Op::Copy { from, to, bytes }),
        2 => (0_u64..3).prop_map(|device| Op::Stream { device }),
        1 => Just(Op::Trim),
        1 => (0_u64..3).prop_map(|device| Op::Sync { device }),
        1 => (0_u64..3, 1..64 * MIB).prop_map(|(device, bytes)| Op::Take { device, bytes }),
        1 => (0_u64..3).prop_map(|device| Op::Give { device }),
        1 => Just(Op::Relax),
    ]
}

fn fault() -> impl Strategy<Value = ScriptFault> {
    let kinds = prop::sample::select(vec![
        ("allocate", "oom"),
        ("create_page", "oom"),
        ("create_page", "oom_keep"),
        ("map", "fail"),
        ("unmap", "fail"),
        ("free", "fail"),
        ("event", "fail"),
        ("any", "fail"),
        ("any", "lost"),
        ("copy", "fail"),
        ("stream", "fail"),
    ]);
    (kinds, 0_u64..3, 0_u64..40, 1_u64..8).prop_map(|((at, kind), device, skip, count)| {
        ScriptFault {
            at: at.to_owned(),
            kind: kind.to_owned(),
            device: Some(device),
            skip,
            count,
            bytes: None,
        }
    })
}

fn script() -> impl Strategy<Value = Script> {
    let device = (2_u64..12, any::<bool>(), any::<bool>()).prop_map(|(eighths, pages, peers)| {
        ScriptDevice {
            capacity_bytes: eighths * 8 * MIB,
            pages,
            peers,
        }
    });
    (
        prop::collection::vec(device, 3..=3),
        any::<u64>(),
        prop::collection::vec(fault(), 0..3),
        prop::collection::vec(op(), 1..80),
    )
        .prop_map(|(devices, seed, faults, ops)| Script {
            schema: 1,
            about: String::new(),
            devices,
            seed,
            faults,
            ops,
        })
}

fn run(script: &Script) -> Replayed {
    replay(script, &AtomicBool::new(false))
}

proptest! {
    #![proptest_config(config("state_machine", 1_500))]

    #[test]
    fn no_history_breaks_the_contract(script in script()) {
        if let Replayed::Broken(why) | Replayed::Failed(why) = run(&script) {
            return Err(TestCaseError::fail(format!("{why}\nreplay with: ds4 check --replay FILE, where FILE holds\n{}", script.to_json())));
        }
    }
}

#[test]
fn every_kept_regression_holds() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/regressions");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let name = path.display().to_string();
        let script = Script::from_json(&std::fs::read(&path).unwrap(), &name).unwrap();
        assert_eq!(run(&script), Replayed::Holds, "{name}");
    }
}
