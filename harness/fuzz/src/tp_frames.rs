//! Every decoder that judges whole pieces: headers, commands, hellos, error frames, key files, and
//! the other dialect's.

use ds4_engine::tp::command::{Message, Reserved};
use ds4_engine::tp::error::TpError;
use ds4_engine::tp::frame::{HEAD_BYTES, Head, Kind};
use ds4_engine::tp::hello::{HELLO_BYTES, Hello};
use ds4_engine::tp::trust::Key;
use ds4_engine::tp::v7;
use ds4_engine::tp::verbs::VerbsMessage;

/// Any bytes give a piece or an error, and what decodes encodes to the same bytes.
pub fn check(bytes: &[u8]) {
    headers(bytes);
    hellos(bytes);
    commands(bytes);
    errors(bytes);
    if let Ok(message) = VerbsMessage::decode(bytes) {
        assert_eq!(VerbsMessage::decode(&message.encode()), Ok(message));
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(key) = Key::parse(text)
    {
        assert_eq!(key.to_hex(), text.trim().to_ascii_lowercase());
    }
}

fn headers(bytes: &[u8]) {
    if let Some(head) = bytes.first_chunk::<HEAD_BYTES>()
        && let Ok(decoded) = Head::decode(head)
    {
        assert_eq!(&decoded.encode(), head);
        assert!(decoded.bytes <= decoded.kind.payload_bytes_max());
    }
    if let Some(head) = bytes.first_chunk::<{ v7::HEAD_BYTES }>()
        && let Ok((kind, length)) = v7::decode_head(head)
    {
        assert_eq!(v7::encode_head(kind, length).as_ref(), Some(head));
        assert!(length <= kind.payload_bytes_max());
    }
    if let Some(head) = bytes.first_chunk::<{ v7::GATE_HEAD_BYTES }>() {
        assert!(v7::describe_gate(head).starts_with("magic "));
    }
}

fn hellos(bytes: &[u8]) {
    if let Some(hello) = bytes.first_chunk()
        && let Some(decoded) = v7::Hello::decode(hello)
    {
        // The last word is the sender's own affair.
        let again = decoded.encode();
        assert_eq!(again[..again.len() - 4], hello[..hello.len() - 4]);
    }
    let hello = bytes.get(..HELLO_BYTES).unwrap_or(bytes);
    if let Ok(decoded) = Hello::decode(hello) {
        assert_eq!(Hello::decode(&decoded.encode()), Ok(decoded));
        assert_eq!(decoded.check(&decoded, decoded.rank), Ok(()));
    }
}

fn commands(bytes: &[u8]) {
    let Some((code, payload)) = bytes.split_first() else {
        return;
    };
    let Some(kind) = Kind::from_code(*code) else {
        return;
    };
    if let Ok(message) = Message::decode(kind, payload, Reserved::Zero) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(again, payload);
        assert_eq!(message.kind(), kind);
    }
    if let Ok(message) = Message::decode(kind, payload, Reserved::Ignored) {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(Message::decode(kind, &again, Reserved::Zero), Ok(message));
    }
}

fn errors(bytes: &[u8]) {
    if let Some(error) = TpError::decode(1, bytes) {
        let shown = error.to_string();
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
    }
}
