//! Any bytes give a frame, a message or an error, and what decodes encodes to the same bytes.
#![no_main]

use ds4_engine::tp::command::{Message, Reserved};
use ds4_engine::tp::error::TpError;
use ds4_engine::tp::frame::{HEAD_BYTES, Head, Kind};
use ds4_engine::tp::hello::Hello;
use ds4_engine::tp::v7;
use ds4_engine::tp::verbs::VerbsMessage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(head) = bytes.first_chunk::<HEAD_BYTES>()
        && let Ok(decoded) = Head::decode(head)
    {
        assert_eq!(&decoded.encode(), head);
    }
    if let Some(head) = bytes.first_chunk::<{ v7::HEAD_BYTES }>()
        && let Some((kind, length)) = v7::decode_head(head)
    {
        assert_eq!(v7::encode_head(kind, length).as_ref(), Some(head));
    }
    if let Some(hello) = bytes.first_chunk() {
        let _ = v7::Hello::decode(hello);
    }
    let _ = Hello::decode(bytes);
    let _ = TpError::decode(1, bytes);
    if let Ok(message) = VerbsMessage::decode(bytes) {
        assert_eq!(VerbsMessage::decode(&message.encode()), Ok(message));
    }
    if let Some((code, payload)) = bytes.split_first()
        && let Some(kind) = Kind::from_code(*code)
        && let Ok(message) = Message::decode(kind, payload, Reserved::Zero)
    {
        let mut again = Vec::new();
        message.encode(&mut again);
        assert_eq!(again, payload);
    }
});
