//! What the reference's two processes wrote to each other.

use serde_json::Value;

/// Their bytes on one connection, in one direction.
pub(crate) fn captured(run: &str, channel: &str, direction: &str) -> Vec<u8> {
    let text = include_str!("../../../golden/tp/wire_protocol7.json");
    let file: Value = serde_json::from_str(text).unwrap();
    unhex(file[run][channel][direction].as_str().unwrap())
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        .collect()
}
