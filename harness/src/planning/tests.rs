//! Plans of models written by the header builder and of a real header.

use super::model::Model;
use super::*;
use crate::gguf::TensorType;
use crate::gguf::tests::{Draft, golden};
use ds4_engine::bytes::{GIB, MIB};
use ds4_engine::selection::{Budget, SelectionFlags};
use proptest::prelude::*;

/// A model of `layers` layers of about 1 MiB, with 8 KiB of KV cache for each token and layer.
fn draft(layers: u32) -> Draft {
    let mut draft = Draft::default()
        .text("general.architecture", "llama")
        .text("general.name", "Model")
        .number("llama.block_count", layers)
        .number("llama.context_length", 8192)
        .number("llama.embedding_length", 2048)
        .number("llama.attention.head_count", 16)
        .tensor("token_embd.weight", &[2048, 1024], TensorType::Q8_0);
    for layer in 0..layers {
        draft = draft
            .tensor(
                &format!("blk.{layer}.attn_norm.weight"),
                &[2050],
                TensorType::F32,
            )
            .tensor(
                &format!("blk.{layer}.ffn.weight"),
                &[2048, 256],
                TensorType::F16,
            );
    }
    draft.tensor("output_norm.weight", &[2048], TensorType::F32)
}

fn untied(layers: u32) -> Draft {
    draft(layers).tensor("output.weight", &[2048, 1024], TensorType::Q8_0)
}

fn request(flags: &SelectionFlags<'_>, context_tokens: Option<u64>) -> PlanRequest {
    PlanRequest {
        selection: Selection::parse(flags, None).unwrap(),
        context_tokens,
        kv_type: KvType::F16,
    }
}

fn vram(text: &str) -> SelectionFlags<'_> {
    SelectionFlags {
        gpu_vram: Some(text),
        ..SelectionFlags::default()
    }
}

fn planned(draft: &Draft, gpu_vram: &str, context_tokens: u64) -> PlanResult {
    plan(
        &draft.header(),
        &request(&vram(gpu_vram), Some(context_tokens)),
    )
    .unwrap()
}

fn refused(draft: &Draft) -> String {
    plan(&draft.header(), &request(&vram("1,1"), None))
        .unwrap_err()
        .to_string()
}

macro_rules! assert_golden {
    ($name:expr, $text:expr) => {
        insta::with_settings!({
            snapshot_path => "../../../golden/plan",
            prepend_module_to_snapshot => false,
        }, {
            insta::assert_snapshot!($name, $text);
        });
    };
}

fn real_header() -> GgufHeader {
    let bytes = std::fs::read(golden("gguf/tiny_llama_q8_0.header.gguf")).unwrap();
    GgufHeader::read(&bytes[..], "tiny_llama_q8_0.gguf", None).unwrap()
}

#[test]
fn a_model_that_fits_shows_what_each_device_holds() {
    let flags = SelectionFlags {
        gpu_devices: Some("3,1"),
        gpu_vram: Some("3M,4M"),
        gpu_reserve: Some("0,256K"),
        ..SelectionFlags::default()
    };
    let plan = plan(&real_header(), &request(&flags, None)).unwrap();
    assert_eq!(plan.verdict, Verdict::Fits);
    assert_golden!("fits", render_text(&plan));
    assert_golden!("fits_json", serde_json::to_string_pretty(&plan).unwrap());
}

#[test]
fn a_model_that_does_not_fit_shows_the_shortfall_and_a_remedy() {
    let plan = planned(&untied(8), "60M,40M", 4096);
    assert_golden!("does_not_fit", render_text(&plan));
    assert_golden!(
        "does_not_fit_json",
        serde_json::to_string_pretty(&plan).unwrap()
    );
}

#[test]
fn excluded_and_unplaced_devices_hold_nothing() {
    let flags = SelectionFlags {
        gpu_placement: Some("0,1"),
        gpu_exclude: Some("0"),
        ..vram("1,1,1")
    };
    let plan = plan(&untied(4).header(), &request(&flags, Some(128))).unwrap();
    assert_golden!("some_devices_unused", render_text(&plan));
    assert_eq!(plan.devices[1].load.total_bytes, plan.needed_bytes);
}

#[test]
fn every_byte_is_on_one_device_or_has_no_room() {
    let plan = planned(&untied(8), "20M,12M", 4096);
    let placed: u64 = plan
        .devices
        .iter()
        .map(|device| device.load.total_bytes)
        .sum();
    assert_eq!(placed + plan.shortfall_bytes, plan.needed_bytes);
    // Per layer: 8200 B round to 8448, and 1 MiB; two caches of 4096 tokens of 2048 elements.
    let layer = 8448 + MIB + 2 * 4096 * 2048 * 2;
    assert_eq!(
        plan.needed_bytes,
        2 * (2048 * 1024 / 32 * 34) + 8192 + 8 * layer
    );
}

#[test]
fn a_tied_head_away_from_the_embedding_holds_a_copy() {
    let embedding = 2048 * 1024 / 32 * 34;
    let together = planned(&draft(2), "1", 64);
    assert!(!together.devices[0].load.embedding_copy);
    let apart = planned(&draft(2), "4M,1", 64);
    assert!(apart.devices[1].load.embedding_copy);
    assert_eq!(apart.needed_bytes, together.needed_bytes + embedding);
    assert_golden!("tied_head", render_text(&apart));
    // The head itself would fit on the last device; its copy does not.
    let tight = planned(&draft(2), "4M,3M", 64);
    assert_eq!(tight.verdict, Verdict::DoesNotFit);
    assert_eq!(tight.shortfall_bytes, embedding + 8192);
}

#[test]
fn a_local_layer_keeps_no_more_than_its_window() {
    let windowed = |draft: Draft| {
        let draft = draft.number("llama.attention.sliding_window", 512);
        let plan = planned(&draft, "1", 4096);
        (plan.devices[0].load.kv_bytes, plan.notes)
    };
    let token = 2 * 2048 * 2;
    const KEY: &str = "llama.attention.sliding_window_pattern";
    assert_eq!(
        windowed(untied(4).number(KEY, 2)).0,
        token * (2 * 512 + 2 * 4096)
    );
    assert_eq!(windowed(untied(4).number(KEY, 0)).0, token * 4 * 512);
    let flags = untied(4).bools(KEY, &[true, true, true, false]);
    assert_eq!(windowed(flags).0, token * (3 * 512 + 4096));
    let (bytes, notes) = windowed(untied(4));
    assert_eq!(bytes, token * 4 * 4096);
    assert!(notes[0].contains("not which layers use it"), "{notes:?}");
}

#[test]
fn heads_and_lengths_size_the_cache() {
    let kv = |draft: &Draft, kv_type| {
        let mut request = request(&vram("1"), Some(1000));
        request.kv_type = kv_type;
        plan(&draft.header(), &request).map(|plan| plan.devices[0].load.kv_bytes)
    };
    let rounded = |bytes: u64| bytes.next_multiple_of(ALLOCATION_BYTES);
    let grouped = untied(3)
        .numbers("llama.attention.head_count_kv", &[4, 0, 2])
        .number("llama.attention.key_length", 96)
        .number("llama.attention.value_length", 32);
    assert_eq!(
        kv(&grouped, KvType::F16),
        Ok(rounded(2000 * 6 * 96) + rounded(2000 * 6 * 32))
    );
    assert_eq!(kv(&grouped, KvType::F32), Ok(4000 * 6 * 128));
    assert_eq!(
        kv(&grouped, KvType::Q8_0),
        Ok([384, 192, 128, 64]
            .map(|row| rounded(1000 * row / 32 * 34))
            .iter()
            .sum())
    );
    let odd = untied(1).number("llama.attention.key_length", 3);
    assert_eq!(
        kv(&odd, KvType::Q8_0),
        Err(PlanError::KvRow {
            kv_type: KvType::Q8_0,
            elements: 48
        })
    );
}

#[test]
fn memory_is_the_remedy_where_no_context_helps() {
    let plan = planned(&untied(8), "4M,4M", 4096);
    let Some(Remedy::Capacity {
        gpu_vram,
        extra_bytes,
        ..
    }) = plan.remedy
    else {
        panic!("{:?}", plan.remedy);
    };
    let better = planned(&untied(8), &gpu_vram, 4096);
    assert_eq!(better.verdict, Verdict::Fits);
    assert!(extra_bytes.is_multiple_of(MIB));
}

#[test]
fn the_reserve_is_the_remedy_where_a_device_cannot_grow() {
    let mut request = request(&vram("16384"), Some(64));
    request.selection.devices[0].reserve_bytes = (16384 * GIB) - MIB;
    let plan = plan(&untied(2).header(), &request).unwrap();
    let Some(Remedy::Reserve { reserve_bytes }) = plan.remedy else {
        panic!("{:?}", plan.remedy);
    };
    assert!(16384 * GIB - reserve_bytes >= plan.needed_bytes);
}

#[test]
fn a_plan_that_cannot_be_made_says_why() {
    let mut table = String::new();
    let mut say = |what: &str, why: String| table += &format!("{what}\n    {why}\n");
    let empty = Draft::default();
    let llama = || Draft::default().text("general.architecture", "llama");
    say("no metadata", refused(&empty));
    say("no layer count", refused(&llama()));
    say(
        "more layers than tensors",
        refused(&llama().number("llama.block_count", u32::MAX)),
    );
    say("no heads", refused(&llama().number("llama.block_count", 0)));
    let heads = || untied(2).number("llama.attention.head_count_kv", 2);
    say(
        "a layer beyond",
        refused(&heads().tensor("blk.2.w", &[1], TensorType::F32)),
    );
    let lengths = untied(2).numbers("llama.attention.head_count_kv", &[1]);
    say("one count for two layers", refused(&lengths));
    let gap = llama()
        .number("llama.block_count", 1)
        .number("llama.attention.head_count", 1)
        .number("llama.embedding_length", 64)
        .tensor("token_embd.weight", &[1], TensorType::F32);
    say("a layer without tensors", refused(&gap));
    let header = untied(2).header();
    let ask = |flags: &SelectionFlags<'_>, context| {
        let selection = Selection::parse(flags, Some(2)).unwrap();
        let request = PlanRequest {
            selection,
            ..request(&vram("1"), context)
        };
        plan(&header, &request).unwrap_err().to_string()
    };
    say("no budget", ask(&vram("auto"), None));
    say("no context", ask(&vram("1"), Some(0)));
    say("too much context", ask(&vram("1"), Some(u64::MAX)));
    say("unknown cache type", "F16".parse::<KvType>().unwrap_err());
    assert_golden!("refused", table);
}

#[test]
fn names_from_a_file_cannot_write_to_a_terminal() {
    let draft = untied(1).text("general.basename", "a");
    let mut header = draft.header();
    header.file = "\u{1b}[2J.gguf".to_owned();
    let plan = plan(&header, &request(&vram("1"), None)).unwrap();
    assert!(!render_text(&plan).contains('\u{1b}'));
}

fn budgets() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(0_u64..40 * MIB, 1..5)
}

fn with_budgets(budgets: &[u64], context_tokens: u64) -> PlanRequest {
    let list = vec!["1"; budgets.len()].join(",");
    let mut request = request(&vram(&list), Some(context_tokens));
    for (device, budget) in request.selection.devices.iter_mut().zip(budgets) {
        device.budget = Budget::Bytes(*budget);
    }
    request
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_remedy_works_and_a_larger_context_does_not(
        budgets in budgets(),
        context in 1_u64..8192,
        tied: bool,
    ) {
        let header = if tied { draft(6) } else { untied(6) }.header();
        let request = with_budgets(&budgets, context);
        let before = plan(&header, &request).unwrap();
        let verdict = |request: &PlanRequest| plan(&header, request).unwrap().verdict;
        let mut changed = request.clone();
        match before.remedy {
            None => prop_assert_eq!(before.verdict, Verdict::Fits),
            Some(Remedy::Context { context_tokens }) => {
                changed.context_tokens = Some(context_tokens);
                prop_assert_eq!(verdict(&changed), Verdict::Fits);
                changed.context_tokens = Some(context_tokens + 1);
                prop_assert_eq!(verdict(&changed), Verdict::DoesNotFit);
            }
            Some(Remedy::Capacity { device, extra_bytes, .. }) => {
                let slot = &mut changed.selection.devices[device.index()];
                slot.budget = Budget::Bytes(budgets[device.index()] + extra_bytes);
                prop_assert_eq!(verdict(&changed), Verdict::Fits);
            }
            Some(Remedy::Reserve { .. }) => prop_assert!(false, "there is no reserve"),
        }
    }

    #[test]
    fn a_shortfall_is_the_least_that_one_device_needs(
        budgets in budgets(),
        context in 1_u64..8192,
        tied: bool,
    ) {
        let header = if tied { draft(6) } else { untied(6) }.header();
        let before = plan(&header, &with_budgets(&budgets, context)).unwrap();
        for (index, device) in before.devices.iter().enumerate() {
            prop_assert_eq!(device.shortfall_bytes.is_none(), before.verdict == Verdict::Fits);
            let Some(shortfall) = device.shortfall_bytes else { continue };
            for (extra, expected) in
                [(shortfall, Verdict::Fits), (shortfall - 1, Verdict::DoesNotFit)]
            {
                let mut richer = budgets.clone();
                richer[index] += extra;
                let got = plan(&header, &with_budgets(&richer, context)).unwrap().verdict;
                prop_assert_eq!(got, expected);
            }
        }
    }

    #[test]
    fn more_context_never_takes_less(layers in 1_u32..4, one in 1_u64..1 << 20, more in 0_u64..99) {
        let model = Model::read(&untied(layers).header()).unwrap();
        let bytes = |tokens| Model::kv_bytes(&model.layers[0], tokens, KvType::F16).unwrap();
        prop_assert!(bytes(one) <= bytes(one + more));
    }
}
