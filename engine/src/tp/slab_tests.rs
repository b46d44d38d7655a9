//! The slab against the reference's own figures, its closed forms, and what must hold for any
//! geometry.

use std::path::Path;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

const KINDS: [LayoutKind; 2] = [LayoutKind::Ds4, LayoutKind::Aligned];

fn golden(name: &str) -> String {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    std::fs::read_to_string(Path::new(&manifest).join("../golden/tp").join(name)).unwrap()
}

fn shape(n_layer: u32, n_embd: u32, ranks: u32) -> SlabGeometry {
    SlabGeometry {
        n_layer,
        n_embd,
        ranks,
    }
}

#[test]
fn every_offset_equals_the_reference() {
    let file: Value = serde_json::from_str(&golden("slab_vectors.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 35);
    for vector in vectors {
        let of = |name: &str| vector[name].as_u64().unwrap();
        let small = |name: &str| u32::try_from(of(name)).unwrap();
        let layout = SlabLayout::ds4(SlabGeometry::new(small("n_layer"), small("n_embd"))).unwrap();
        assert_eq!(layout.vec_bytes(), of("vec_bytes"));
        assert_eq!(layout.slots(), of("n_slots"));
        assert_eq!(layout.slab_bytes(), of("slab_bytes"));
        for (region, span) in layout.regions() {
            assert_eq!(
                span.offset,
                of(&format!("{}_off", region.name())),
                "{region:?}"
            );
        }
        for (when, layer) in [("mid", small("mid_layer")), ("last", small("last_layer"))] {
            for (gate, name) in [(0, "attn"), (1, "ffn")] {
                let slot = u64::from(layer) * 2 + gate;
                let (out, into) = (format!("out_{when}_{name}"), format!("in_{when}_{name}"));
                assert_eq!(layout.out_vector(slot).unwrap().offset, of(&out));
                assert_eq!(layout.in_vector(slot, 0).unwrap().offset, of(&into));
            }
            let (out, into) = (format!("batch_out_{when}"), format!("batch_in_{when}"));
            assert_eq!(layout.batch_out_row(layer, 0).unwrap().offset, of(&out));
            assert_eq!(layout.batch_in_row(layer, 0, 0).unwrap().offset, of(&into));
        }
    }
}

#[test]
fn real_shapes_are_as_reviewed() {
    let mut table = String::new();
    for (n_layer, n_embd) in [
        (43, 4096),
        (61, 7168),
        (79, 6144),
        (80, 8192),
        (126, 16384),
        (1, 1),
        (3, 5),
        (43, 4095),
        (61, 7169),
        (7, 63),
    ] {
        for ranks in [2, 8] {
            for kind in KINDS {
                let layout = SlabLayout::new(kind, shape(n_layer, n_embd, ranks)).unwrap();
                let places: Vec<String> = layout
                    .regions()
                    .map(|(region, span)| {
                        format!("{} {}+{}", region.name(), span.offset, span.bytes)
                    })
                    .collect();
                table.push_str(&format!(
                    "{n_layer}x{n_embd} {ranks} ranks {}: {} bytes, hash {:016x}\n  {}\n",
                    kind.name(),
                    layout.slab_bytes(),
                    layout.hash(),
                    places.join(", ")
                ));
            }
        }
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../golden/tp");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("slab-real-shapes", table));
}

#[test]
fn geometries_without_a_slab_are_refused() {
    for kind in KINDS {
        let refusal = |geometry| SlabLayout::new(kind, geometry).unwrap_err();
        assert_eq!(refusal(shape(0, 1, 2)), SlabError::NoLayer);
        assert_eq!(refusal(shape(1, 0, 2)), SlabError::NoWidth);
        for ranks in [0, 1, RANKS_MAX + 1, u32::MAX] {
            assert_eq!(refusal(shape(1, 1, ranks)), SlabError::Ranks(ranks));
        }
        // These wrap in the reference.
        for geometry in [
            shape(u32::MAX, u32::MAX, 2),
            shape(u32::MAX, 1 << 27, 2),
            shape(1 << 31, 1 << 30, 32),
        ] {
            assert_eq!(refusal(geometry), SlabError::TooLarge(geometry));
        }
        // 2^31 layers make the reference's slot count 0 while its size counts them all.
        let many = SlabLayout::new(kind, shape(1 << 31, 1, 2)).unwrap();
        assert_eq!(many.slots(), 1 << 32);
        if kind == LayoutKind::Ds4 {
            assert_eq!(many.slab_bytes(), 257_698_037_776);
        }
    }
}

#[test]
fn places_outside_the_slab_do_not_exist() {
    for kind in KINDS {
        let layout = SlabLayout::new(kind, shape(3, 5, 3)).unwrap();
        assert_eq!(layout.out_vector(6), None);
        assert_eq!(layout.in_vector(0, 2), None);
        assert_eq!(layout.in_vector(u64::MAX, 0), None);
        assert_eq!(layout.batch_out_row(3, 0), None);
        assert_eq!(layout.batch_out_row(0, 8), None);
        assert_eq!(layout.batch_in_row(2, 0, 2), None);
        assert_eq!(layout.batch_out(0, 0), None);
        assert_eq!(layout.batch_in(0, 9, 0), None);
    }
    assert_eq!((peer_index(2, 0), peer_index(2, 3)), (Some(0), Some(2)));
    assert_eq!(peer_index(2, 2), None);
}

#[test]
fn the_hash_tells_layouts_apart() {
    let base = SlabLayout::ds4(shape(43, 4096, 2)).unwrap().hash();
    for other in [
        SlabLayout::aligned(shape(43, 4096, 2)),
        SlabLayout::ds4(shape(44, 4096, 2)),
        SlabLayout::ds4(shape(43, 4097, 2)),
        SlabLayout::ds4(shape(43, 4096, 3)),
    ] {
        assert_ne!(base, other.unwrap().hash());
    }
}

prop_compose! {
    fn any_shape()(n_layer in 1_u32..200, n_embd in 1_u32..20_000, ranks in 2_u32..=8) -> SlabGeometry {
        shape(n_layer, n_embd, ranks)
    }
}

proptest! {
    #[test]
    fn the_closed_forms_hold(n_layer in 1_u32..100_000, n_embd in 1_u32..1_000_000) {
        let layout = SlabLayout::ds4(SlabGeometry::new(n_layer, n_embd)).unwrap();
        let (l, le) = (u64::from(n_layer), u64::from(n_layer) * u64::from(n_embd));
        let offsets: Vec<u64> = layout.regions().map(|(_, span)| span.offset).collect();
        let flags = 16 * le;
        prop_assert_eq!(offsets, [
            0, 8 * le, flags, flags + 16 * l, flags + 16 * l + 16, flags + 32 * l + 16,
            flags + 40 * l + 16, 48 * le + 40 * l + 16,
        ]);
        prop_assert_eq!(layout.slab_bytes(), 80 * le + 40 * l + 16);
    }

    #[test]
    fn regions_are_ordered_disjoint_and_fill_the_slab(geometry in any_shape()) {
        for kind in KINDS {
            let layout = SlabLayout::new(kind, geometry).unwrap();
            let align = kind.align_bytes();
            let mut end = 0;
            for (region, span) in layout.regions() {
                prop_assert!(span.offset >= end && span.offset - end < align, "{:?}", region);
                prop_assert_eq!(span.offset % align, 0);
                end = span.end();
            }
            prop_assert!(layout.slab_bytes() >= end && layout.slab_bytes() - end < align);
            // Flags can always be read as what they are.
            for region in [Region::InFlags, Region::Token, Region::OutFlags, Region::GpuFlags] {
                prop_assert_eq!(layout.region(region).offset % 8, 0);
            }
        }
    }

    #[test]
    fn vectors_are_disjoint_aligned_and_inside_their_region(
        n_layer in 1_u32..6, n_embd in 1_u32..300, ranks in 2_u32..=5,
    ) {
        for kind in KINDS {
            let layout = SlabLayout::new(kind, shape(n_layer, n_embd, ranks)).unwrap();
            let peers = ranks - 1;
            let mut spans: Vec<(Region, Span)> = Vec::new();
            for slot in 0..layout.slots() {
                spans.push((Region::Out, layout.out_vector(slot).unwrap()));
                spans.extend((0..peers).map(|peer| (Region::In, layout.in_vector(slot, peer).unwrap())));
            }
            for layer in 0..n_layer {
                for row in 0..BATCH_ROWS_MAX {
                    spans.push((Region::BatchOut, layout.batch_out_row(layer, row).unwrap()));
                    spans.extend((0..peers).map(|peer| {
                        (Region::BatchIn, layout.batch_in_row(layer, row, peer).unwrap())
                    }));
                }
                for peer in 0..peers {
                    let all = layout.batch_in(layer, BATCH_ROWS_MAX, peer).unwrap();
                    prop_assert_eq!(all.offset, layout.batch_in_row(layer, 0, peer).unwrap().offset);
                    prop_assert_eq!(all.end(), layout.batch_in_row(layer, 7, peer).unwrap().end());
                }
            }
            spans.sort_by_key(|(_, span)| span.offset);
            for pair in spans.windows(2) {
                prop_assert!(pair[0].1.end() <= pair[1].1.offset);
            }
            for (region, span) in spans {
                let whole = layout.region(region);
                prop_assert!(span.offset >= whole.offset && span.end() <= whole.end());
                prop_assert_eq!(span.offset % kind.align_bytes(), 0);
            }
        }
    }

    #[test]
    fn every_rank_computes_the_same_slab(geometry in any_shape()) {
        // No rank, device or history enters: equal inputs give equal layouts and hashes.
        for kind in KINDS {
            let (a, b) = (SlabLayout::new(kind, geometry), SlabLayout::new(kind, geometry));
            prop_assert_eq!(a.unwrap().hash(), b.unwrap().hash());
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn no_geometry_panics(n_layer: u32, n_embd: u32, ranks: u32, index: u64, part: u32) {
        for kind in KINDS {
            if let Ok(layout) = SlabLayout::new(kind, shape(n_layer, n_embd, ranks)) {
                prop_assert!(layout.slab_bytes() <= MAX_BYTES);
                for span in [
                    layout.out_vector(index),
                    layout.in_vector(index, part),
                    layout.batch_in(part, part, part),
                    layout.batch_out_row(part, part),
                ].into_iter().flatten() {
                    prop_assert!(span.end() <= layout.slab_bytes());
                }
            }
        }
    }
}
