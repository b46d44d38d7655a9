//! The table of accepted and refused inputs, one call site.

use super::*;
use crate::bytes::{GIB, MIB};
use crate::device::MAX_DEVICES;
use proptest::prelude::*;

/// The flags from `vram=24,24 devices=0,1 placement=0`, separated by `;`.
fn flags(text: &str) -> SelectionFlags<'_> {
    let mut flags = SelectionFlags::default();
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap();
        let slot = match name {
            "devices" => &mut flags.gpu_devices,
            "vram" => &mut flags.gpu_vram,
            "reserve" => &mut flags.gpu_reserve,
            "placement" => &mut flags.gpu_placement,
            "exclude" => &mut flags.gpu_exclude,
            other => panic!("no flag {other}"),
        };
        *slot = Some(value);
    }
    flags
}

fn parse(text: &str, present: Option<usize>) -> Result<Selection, SelectionError> {
    Selection::parse(&flags(text), present)
}

/// Ordinal and budget in GiB of each device, `u64::MAX` for auto.
fn accepted(text: &str, present: Option<usize>) -> Vec<(u32, u64)> {
    parse(text, present)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .devices
        .iter()
        .map(|device| match device.budget {
            Budget::Auto => (device.ordinal.0, u64::MAX),
            Budget::Bytes(bytes) => (device.ordinal.0, bytes / GIB),
        })
        .collect()
}

const AUTO: u64 = u64::MAX;

#[test]
fn budgets_and_devices_pair_in_the_users_order() {
    for (text, present, expected) in [
        ("vram=40,12", None, vec![(0, 40), (1, 12)]),
        ("vram=40", Some(8), vec![(0, 40)]),
        ("vram=40,12;devices=0,2", Some(3), vec![(0, 40), (2, 12)]),
        ("vram=40,12;devices=2,0", None, vec![(2, 40), (0, 12)]),
        ("vram=auto", Some(2), vec![(0, AUTO), (1, AUTO)]),
        ("devices=0,1", Some(2), vec![(0, AUTO), (1, AUTO)]),
        ("", Some(2), vec![(0, AUTO), (1, AUTO)]),
        ("vram=16384", None, vec![(0, 16384)]),
        ("vram= 40, 12", None, vec![(0, 40), (1, 12)]),
        ("vram=40\t,12", None, vec![(0, 40), (1, 12)]),
        (
            "vram=24G,24GiB,24gb,024",
            None,
            vec![(0, 24), (1, 24), (2, 24), (3, 24)],
        ),
        ("devices=0,1023", None, vec![(0, AUTO), (1023, AUTO)]),
    ] {
        assert_eq!(accepted(text, present), expected, "{text}");
    }
}

#[test]
fn sizes_below_a_gib_are_kept_to_the_byte() {
    let selection = parse("vram=512M,1", None).unwrap();
    assert_eq!(selection.devices[0].budget, Budget::Bytes(512 * MIB));
    assert_eq!(selection.devices[1].budget, Budget::Bytes(GIB));
}

#[test]
fn thirty_two_devices_are_accepted_and_the_next_refused() {
    let list = |count: usize| vec!["1"; count].join(",");
    assert_eq!(accepted(&format!("vram={}", list(32)), None).len(), 32);
    assert_eq!(
        parse(&format!("vram={}", list(33)), None),
        Err(SelectionError::TooMany {
            flag: FLAG_VRAM,
            count: 33
        })
    );
    assert_eq!(accepted("", Some(40)).len(), MAX_DEVICES);
}

#[test]
fn reserve_is_one_value_or_one_for_each_device() {
    let reserves = |text| -> Vec<u64> {
        let selection = parse(text, None).unwrap();
        selection
            .devices
            .iter()
            .map(|device| device.reserve_bytes)
            .collect()
    };
    assert_eq!(reserves("vram=24,24"), [0, 0]);
    assert_eq!(reserves("vram=24,24;reserve=1"), [GIB, GIB]);
    assert_eq!(reserves("vram=24,24;reserve=0,512M"), [0, 512 * MIB]);
}

#[test]
fn placement_and_exclusion_are_masks_of_logical_numbers() {
    let selection = parse("vram=8,8,8;devices=5,3,1;placement=0,2;exclude=2", None).unwrap();
    assert_eq!(selection.placement, DeviceMask(0b101));
    assert_eq!(selection.excluded(), DeviceMask(0b100));
    assert_eq!(selection.usable(), DeviceMask(0b001));
    insta::assert_snapshot!(
        selection,
        @"devices: gpu0 = device 5 (8 GiB), gpu1 = device 3 (8 GiB), gpu2 = device 1 (8 GiB, excluded); placement 0b101"
    );
    insta::assert_snapshot!(
        parse("devices=1,0;reserve=1,512M", Some(2)).unwrap(),
        @"devices: gpu0 = device 1 (all that is free less 1 GiB), gpu1 = device 0 (all that is free less 512 MiB); placement any"
    );
}

/// Every refused input with its sentence.
#[test]
fn refusals_name_the_flag_the_piece_and_what_is_allowed() {
    let cases = [
        ("vram=", None),
        ("vram=   ", None),
        ("vram=abc", None),
        ("vram=AUTO", None),
        ("vram=40,auto", None),
        ("vram=0", None),
        ("vram=00", None),
        ("vram=0,0", None),
        ("vram=40,0", None),
        ("vram=0G", None),
        ("vram=40,", None),
        ("vram=,40", None),
        ("vram=40, ", None),
        ("vram=40,,12", None),
        ("vram=16385", None),
        ("vram=9999999", None),
        ("vram=18446744073709551616", None),
        ("vram=99999999999999999999G", None),
        ("vram=-1", None),
        ("vram=+4", None),
        ("vram=40.5", None),
        ("vram=0x10", None),
        ("vram=40 12", None),
        ("vram=64Q", None),
        ("vram=4\u{1b}[31m", None),
        ("vram=40,12,40;devices=0,2", None),
        ("vram=0;devices=0,1", None),
        ("vram=1,1,1", Some(2)),
        ("vram=auto", None),
        ("vram=auto", Some(0)),
        ("", None),
        ("devices=", Some(2)),
        ("devices=0,0", Some(2)),
        ("devices=1,01", Some(2)),
        ("devices=32", Some(32)),
        ("devices=1", Some(1)),
        ("devices=0,1024", None),
        ("devices=18446744073709551616", None),
        ("devices=-1", Some(2)),
        ("devices=abc", Some(2)),
        ("devices=+0", Some(2)),
        ("devices=0x0", Some(2)),
        ("devices=0 1", Some(2)),
        ("devices=0,", Some(2)),
        ("devices=2", Some(2)),
        ("placement=0,0", Some(2)),
        ("placement=2;devices=1,0", Some(2)),
        ("placement=32", Some(2)),
        ("placement=-1", Some(2)),
        ("placement=", Some(2)),
        ("placement=1;exclude=1", Some(2)),
        ("exclude=2;devices=3,1", Some(4)),
        ("exclude=0,1", Some(2)),
        ("exclude=1,1", Some(2)),
        ("vram=24,24;reserve=24", None),
        ("vram=24,24;reserve=1,2,3", None),
        ("vram=24;reserve=-1", None),
    ];
    let mut table = String::new();
    for (text, present) in cases {
        let error = parse(text, present).expect_err(text).to_string();
        assert!(error.contains("; "), "no remedy: {error}");
        let present = present.map_or(String::new(), |count| format!(" (of {count})"));
        table += &format!("{}{present}\n    {error}\n", text.escape_debug());
    }
    insta::with_settings!({
        snapshot_path => "../../../golden/selection",
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!("refused", table);
    });
}

proptest! {
    #[test]
    fn no_text_brings_the_parser_down(
        vram in proptest::option::of("[0-9a-zA-Z,. +-]{0,12}"),
        devices in proptest::option::of("\\PC{0,8}"),
        placement in proptest::option::of("[0-9,]{0,6}"),
        reserve in proptest::option::of("[0-9GM,]{0,6}"),
        present in proptest::option::of(0_usize..40),
    ) {
        let flags = SelectionFlags {
            gpu_vram: vram.as_deref(),
            gpu_devices: devices.as_deref(),
            gpu_placement: placement.as_deref(),
            gpu_reserve: reserve.as_deref(),
            ..SelectionFlags::default()
        };
        if let Ok(selection) = Selection::parse(&flags, present) {
            prop_assert!(!selection.usable().is_empty());
            for (index, device) in selection.devices.iter().enumerate() {
                prop_assert_eq!(device.id.index(), index);
                prop_assert!(device.budget != Budget::Bytes(0));
            }
        }
    }

    #[test]
    fn selected_devices_are_distinct_and_in_order(
        ordinals in proptest::sample::subsequence((0_u32..64).collect::<Vec<_>>(), 1..=32)
            .prop_shuffle(),
    ) {
        let list: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
        let selection = parse(&format!("devices={}", list.join(",")), Some(64)).unwrap();
        let got: Vec<u32> = selection.devices.iter().map(|device| device.ordinal.0).collect();
        prop_assert_eq!(got, ordinals);
    }
}
