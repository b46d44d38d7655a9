//! What fuzzing found worth keeping, replayed through the functions of the fuzz targets.
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../fuzz/src/tp_frames.rs"]
#[expect(unreachable_pub, reason = "it is public where the targets are")]
mod tp_frames;
#[path = "../fuzz/src/tp_session.rs"]
#[expect(
    unreachable_pub,
    clippy::cast_possible_truncation,
    reason = "it is public where the targets are, and its lengths are a few bytes"
)]
mod tp_session;
#[path = "../fuzz/src/tp_trust.rs"]
#[expect(unreachable_pub, reason = "it is public where the targets are")]
mod tp_trust;

use std::path::Path;

/// Replays each line of a target's corpus.
fn replay(target: &str, check: fn(&[u8]), least: usize) {
    let manifest = std::env::var("CARGO_MANIFEST_DIR");
    let manifest = manifest.unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let file = Path::new(&manifest).join(format!("../golden/tp/corpus/{target}.hex"));
    let text = std::fs::read_to_string(file).unwrap();
    let mut count = 0;
    for line in text.lines() {
        let (pairs, rest) = line.as_bytes().as_chunks::<2>();
        assert!(rest.is_empty() && !pairs.is_empty(), "{line}");
        let bytes: Vec<u8> = pairs
            .iter()
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect();
        check(&bytes);
        // Cut short anywhere, they are other inputs.
        for end in 0..bytes.len() {
            check(&bytes[..end]);
        }
        count += 1;
    }
    assert!(count >= least, "{count} inputs");
}

#[test]
fn frames_of_the_corpus_decode_or_are_refused() {
    replay("tp_frames", tp_frames::check, 100);
}

#[test]
fn sessions_of_the_corpus_keep_their_promises() {
    replay("tp_session", tp_session::check, 100);
}

#[test]
fn handshakes_of_the_corpus_prove_nothing_that_is_not_so() {
    replay("tp_trust", tp_trust::check, 20);
}
