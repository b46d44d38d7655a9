//! Who sends what to whom, without bytes; `session` has the bytes.

use proptest::prelude::*;

use super::*;

#[test]
fn small_sums_go_straight_and_large_ones_round() {
    let ways = SumLimits::default();
    assert_eq!(ways.choose(2, 1 << 30), Way::OneShot);
    assert_eq!(ways.choose(8, 16 << 10), Way::OneShot);
    assert_eq!(ways.choose(8, 4 << 20), Way::Ring);
    assert_eq!(ways.choose(3, 4 << 20), Way::Ring);
    assert_eq!(ways.choose(u32::MAX, u64::MAX), Way::Ring);
}

#[test]
fn what_a_rank_sends_is_what_the_next_one_awaits_and_at_most_two_vectors() {
    let ways = SumLimits::default();
    for ranks in 2..=32 {
        for rank in 0..ranks {
            let here = Ring::new(&ways, rank, ranks, 1 << 20).unwrap();
            let next = Ring::new(&ways, here.next(), ranks, 1 << 20).unwrap();
            assert_eq!(next.before(), rank);
            assert_eq!(here.partials_out(), next.partials_in());
            assert_eq!(here.sums_out(), next.sums_in());
            assert!(here.partials_out() + here.sums_out() <= 2 * here.pieces());
        }
    }
}

proptest! {
    #[test]
    fn the_pieces_are_the_vector_without_gap_or_overlap(
        piece_bytes: u32, bytes in 0_usize..1 << 30, ranks: u32, rank: u32,
    ) {
        let ways = SumLimits { piece_bytes, ..SumLimits::default() };
        let Some(ring) = Ring::new(&ways, rank, ranks, bytes) else { return Ok(()) };
        let mut end = 0;
        for piece in 0..ring.pieces() {
            let place = ring.place(piece);
            prop_assert_eq!(place.start, end);
            prop_assert!(place.end > place.start && place.start % 4 == 0);
            end = place.end;
        }
        prop_assert_eq!(end, bytes);
        prop_assert!(ring.place(u16::MAX).end <= bytes);
        prop_assert!(ring.next() < ranks && ring.before() < ranks);
    }
}

#[test]
fn the_protocol_names_the_numbers_that_ranks_compare() {
    let words = include_str!("PROTOCOL.md").replace(char::is_whitespace, "");
    let ways = SumLimits::default();
    for (what, bytes) in [
        ("leavearankinoneshot", ways.one_shot_bytes_max),
        ("pieceofaring", ways.piece_bytes),
    ] {
        assert!(words.contains(&format!("{what}({bytes})")), "{bytes}");
    }
}
