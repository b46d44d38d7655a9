//! Every decoder against golden bytes, its own encoder, and arbitrary bytes.

use proptest::prelude::*;

use super::*;
use crate::tp::captured::captured;
use crate::tp::collective::{self, CollectiveMessage};
use crate::tp::command::{Item, Items, Message, Reserved, Tokens};
use crate::tp::error::{Cause, Position, TpError};
use crate::tp::exchange::SumLimits;
use crate::tp::hello::{HELLO_BYTES, Hello};
use crate::tp::roster::{self, Entry, Host};
use crate::tp::transport::TransportSet;
use crate::tp::v7;
use crate::tp::verbs::{Endpoint, Offer, OfferedGid, RELIABLE, UNRELIABLE, VerbsMessage, Verdict};

const ITEMS: [Item; 2] = [
    Item {
        session: 1,
        token: 7,
    },
    Item {
        session: 1,
        token: 8,
    },
];

fn messages<'a>() -> Vec<Message<'a>> {
    let tokens = Tokens::new(&[11, 12, 13, 14, 15]);
    let session = 1;
    vec![
        Message::SessionCreate {
            session,
            context: 4096,
        },
        Message::Sync { session, tokens },
        Message::Eval {
            session,
            seq: 1,
            token: 42,
        },
        Message::Rewind {
            session,
            position: 3,
        },
        Message::Invalidate { session },
        Message::Verify {
            session,
            drafts: Tokens::new(&[11, 12, 13]),
        },
        Message::VerifyCommit {
            full: false,
            replay: 2,
        },
        Message::EvalBatch {
            items: Items::new(&ITEMS),
        },
        Message::MixedBatch {
            session,
            prompt: tokens,
            items: Items::new(&ITEMS),
        },
        Message::SessionDestroy { session },
        Message::Ack { session, status: 0 },
        Message::Logits(&[0, 0, 0, 65, 0, 0, 16, 65]),
        Message::Hash {
            seq: 5,
            hash: 0x1122_3344_5566_7788,
        },
        Message::Stop,
        Message::StopAck,
    ]
}

fn verbs_messages() -> Vec<VerbsMessage> {
    let mapped = "::ffff:10.8.0.1".parse::<std::net::Ipv6Addr>().unwrap();
    let gid = OfferedGid {
        kind: 3,
        interface: true,
        raw: mapped.octets(),
    };
    vec![
        VerbsMessage::Offer(Offer {
            link: 2,
            kinds: RELIABLE | UNRELIABLE,
            gids: vec![gid],
        }),
        VerbsMessage::Nothing("none".to_owned()),
        VerbsMessage::Endpoint(Endpoint {
            kind: 2,
            mtu: 3,
            lid: 0x0102,
            number: 0x00aa_bbcc,
            psn: 0x0011_2233,
            key: 0x4455_6677,
            max_message_bytes: 1 << 30,
            slot_bytes: 32 << 10,
            slots: 16,
            address: 0x7f00_1234_5000,
            gid: mapped.octets(),
            peer_gid: [9; 16],
        }),
        VerbsMessage::Verdict(Verdict::Failed, "no".to_owned()),
    ]
}

fn collective_offer() -> CollectiveMessage {
    CollectiveMessage::Offer(Box::new(collective::Offer {
        library: collective::NCCL,
        version: 22_703,
        name: std::array::from_fn(|at| u8::try_from(at).unwrap()),
    }))
}

fn roster_entries() -> Vec<Entry> {
    let hosts = [Host::Leaders, Host::V4([10, 8, 0, 1]), Host::V6([9; 16])];
    let entries = (1..).zip(hosts).map(|(rank, host)| Entry {
        rank,
        port: 0x3039,
        host,
    });
    entries.collect()
}

fn payload(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn row(layer: u32, name: GateName) -> Gate {
    Gate {
        layer,
        name,
        kind: GateKind::Row,
    }
}

#[test]
fn native_bytes_are_as_reviewed() {
    let mut text = String::new();
    for (seq, message) in (1..).zip(messages()) {
        let mut frame = Vec::new();
        assert!(push_control(
            &mut frame,
            message.kind(),
            seq,
            &payload(&message)
        ));
        text.push_str(&format!("{} {}\n", message.kind().name(), hex(&frame)));
    }
    for (seq, message) in (1..).zip(verbs_messages()) {
        let mut frame = Vec::new();
        assert!(push_control(
            &mut frame,
            Kind::Verbs,
            seq,
            &message.encode()
        ));
        text.push_str(&format!("VERBS {}\n", hex(&frame)));
        let payload = frame.get(HEAD_BYTES..).unwrap_or_default();
        assert_eq!(VerbsMessage::decode(payload), Ok(message));
    }
    let others = [
        (Kind::Collective, collective_offer().encode()),
        (
            Kind::Collective,
            CollectiveMessage::Nothing("none".to_owned()).encode(),
        ),
        (Kind::Roster, roster::encode(&roster_entries())),
    ];
    for (seq, (kind, payload)) in (1..).zip(others) {
        let mut frame = Vec::new();
        assert!(push_control(&mut frame, kind, seq, &payload));
        text.push_str(&format!("{} {}\n", kind.name(), hex(&frame)));
    }
    let offer = collective_offer();
    assert_eq!(CollectiveMessage::decode(&offer.encode()), Ok(offer));
    let entries = roster_entries();
    assert_eq!(roster::decode(&roster::encode(&entries)), Ok(entries));
    let gates = [
        (row(42, GateName::FeedForward), 86, Some(0xdead_beef)),
        (row(0, GateName::Attention), 1, None),
        (
            Gate {
                kind: GateKind::Batch { rows: 8 },
                ..row(60, GateName::Attention)
            },
            9,
            Some(1),
        ),
        (
            Gate {
                kind: GateKind::Big { bytes: 10 },
                ..row(3, GateName::FeedForward)
            },
            2,
            Some(2),
        ),
    ];
    for (gate, seq, crc) in gates {
        let head = Head::gate(gate, seq, Piece::Part, 10, crc).unwrap();
        text.push_str(&format!("{} {}\n", head.kind.name(), hex(&head.encode())));
    }
    let error = TpError {
        rank: 1,
        at: Position {
            layer: 12,
            gate: GateName::FeedForward,
            seq: 26,
        },
        cause: Cause::Local("out of memory".to_owned()),
    };
    text.push_str(&format!("ERROR payload {}\n", hex(&error.encode())));
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../../../golden/tp");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("native-frames", text));
}

#[test]
fn the_references_commands_decode_and_encode_to_the_same_bytes() {
    for (run, frames) in [("gates_run", 2), ("commands_run", 10)] {
        for direction in ["leader_to_worker", "worker_to_leader"] {
            let bytes = captured(run, "control", direction);
            let (hello, mut rest) = bytes.split_first_chunk::<{ v7::HELLO_BYTES }>().unwrap();
            let decoded = v7::Hello::decode(hello).unwrap();
            assert_eq!(&decoded.encode(), hello);
            assert_eq!(
                (decoded.n_layer, decoded.n_embd, decoded.n_vocab),
                (2, 3, 16)
            );
            let mut count = 0;
            while let Some((head, after)) = rest.split_first_chunk::<{ v7::HEAD_BYTES }>() {
                let (kind, length) = v7::decode_head(head).unwrap();
                let (body, after) = after.split_at(length as usize);
                let message = Message::decode(kind, body, Reserved::Zero).unwrap();
                assert_eq!(payload(&message), body, "{message:?}");
                assert_eq!(v7::encode_head(kind, length).as_ref(), Some(head));
                rest = after;
                count += 1;
            }
            assert!(rest.is_empty());
            let from_leader = direction == "leader_to_worker";
            assert!(!from_leader || count == frames, "{run}: {count}");
        }
    }
}

#[test]
fn the_references_gates_have_our_headers() {
    let sizes = [
        (row(0, GateName::Attention), 1, 12),
        (row(0, GateName::FeedForward), 2, 12),
        (row(1, GateName::Attention), 3, 12),
        (row(1, GateName::FeedForward), 4, 12),
        (row(0, GateName::Attention), 5, 12),
        (
            Gate {
                kind: GateKind::Batch { rows: 2 },
                ..row(1, GateName::Attention)
            },
            1,
            24,
        ),
        (
            Gate {
                kind: GateKind::Big { bytes: 10 },
                ..row(0, GateName::Attention)
            },
            2,
            10,
        ),
    ];
    for direction in ["leader_to_worker", "worker_to_leader"] {
        let bytes = captured("gates_run", "data", direction);
        let mut rest = bytes.as_slice();
        for (gate, seq, length) in sizes {
            let (head, after) = rest.split_first_chunk::<{ v7::GATE_HEAD_BYTES }>().unwrap();
            assert_eq!(v7::encode_gate(gate, seq).as_ref(), Some(head), "{gate}");
            rest = &after[length..];
        }
        assert!(rest.is_empty());
    }
}

#[test]
fn limits_and_reserved_fields_are_kept() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_code(kind.code()), Some(*kind));
        let too_long = Head {
            kind: *kind,
            gate: kind.is_gate().then_some((0, GateName::Attention)),
            rows: u8::from(*kind == Kind::BatchGate),
            piece: Piece::Part,
            bytes: kind.payload_bytes_max().saturating_add(1),
            seq: 1,
            payload_crc: Some(0),
        };
        assert!(
            matches!(
                Head::decode(&too_long.encode()),
                Err(FrameError::TooLong { .. })
            ),
            "{kind:?}"
        );
    }
    // A reserved field that is set: the reference ignores it, the native protocol does not.
    let mut bytes = payload(&messages()[0]);
    bytes[12] = 1;
    assert!(Message::decode(Kind::SessionCreate, &bytes, Reserved::Zero).is_err());
    assert!(Message::decode(Kind::SessionCreate, &bytes, Reserved::Ignored).is_ok());
    // Counts that do not match, and none at all where one is needed.
    assert!(Message::decode(Kind::EvalBatch, &[0; 8], Reserved::Zero).is_err());
    assert!(Message::decode(Kind::Sync, &[0xff; 16], Reserved::Ignored).is_err());
    assert!(Message::decode(Kind::Stop, &[0], Reserved::Zero).is_err());
    assert!(
        Message::decode(
            Kind::VerifyCommit,
            &[1, 0, 0, 0, 1, 0, 0, 0],
            Reserved::Zero
        )
        .is_err()
    );
    let wide = row(65_536, GateName::Attention);
    assert_eq!(Head::gate(wide, 1, Piece::Part, 4, None), None);
    assert_eq!(v7::encode_gate(wide, 1), None);
}

proptest! {
    #[test]
    fn any_header_that_decodes_encodes_to_itself(bytes: [u8; HEAD_BYTES], fix: bool, code in 0_u8..70) {
        let mut bytes = bytes;
        if fix {
            // Past magic and checksum, so that the fields are judged too.
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] = code;
            bytes[5] &= 7;
            let crc = crc32c::crc32c(&bytes[..28]);
            bytes[28..].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(head) = Head::decode(&bytes) {
            prop_assert_eq!(head.encode(), bytes);
        }
    }

    #[test]
    fn any_header_survives_its_bytes_and_no_flipped_bit(
        layer: u16, ffn: bool, rows in 1_u32..=8, bytes in 0_usize..1 << 30, seq: u64, crc: Option<u32>, flip in 0_usize..256, number: u16,
    ) {
        let name = if ffn { GateName::FeedForward } else { GateName::Attention };
        for (kind, piece) in [
            (GateKind::Row, Piece::Part),
            (GateKind::Batch { rows }, Piece::Partial(number)),
            (GateKind::Big { bytes: 1 }, Piece::Sum(number)),
        ] {
            let gate = Gate { layer: u32::from(layer), name, kind };
            let head = Head::gate(gate, seq, piece, bytes, crc).unwrap();
            let mut encoded = head.encode();
            prop_assert_eq!(Head::decode(&encoded), Ok(head));
            encoded[flip / 8] ^= 1 << (flip % 8);
            prop_assert!(Head::decode(&encoded).is_err());
        }
    }

    #[test]
    fn any_payload_that_decodes_encodes_to_itself(
        code in 0_u8..70, bytes in prop::collection::vec(any::<u8>(), 0..80), sparse: bool,
    ) {
        let Some(kind) = Kind::from_code(code) else { return Ok(()) };
        let mut bytes = bytes;
        if sparse {
            // Mostly zeros, so that counts match now and then.
            for (index, byte) in bytes.iter_mut().enumerate() {
                *byte &= if index % 7 == 0 { 1 } else { 0 };
            }
        }
        if let Ok(message) = Message::decode(kind, &bytes, Reserved::Zero) {
            prop_assert_eq!(payload(&message), bytes.clone());
        }
        if let Ok(message) = Message::decode(kind, &bytes, Reserved::Ignored) {
            prop_assert_eq!(payload(&message).len(), bytes.len());
        }
    }

    #[test]
    fn any_list_survives_its_bytes(session: u64, tokens: Vec<i32>, items in prop::collection::vec(any::<(u64, i32)>(), 1..20)) {
        let items: Vec<Item> = items.into_iter().map(|(session, token)| Item { session, token }).collect();
        let mut all = messages();
        all.push(Message::Sync { session, tokens: Tokens::new(&tokens) });
        all.push(Message::EvalBatch { items: Items::new(&items) });
        if !tokens.is_empty() {
            all.push(Message::MixedBatch { session, prompt: Tokens::new(&tokens), items: Items::new(&items) });
        }
        for message in all {
            let bytes = payload(&message);
            let decoded = Message::decode(message.kind(), &bytes, Reserved::Zero);
            prop_assert_eq!(decoded, Ok(message));
        }
    }

    #[test]
    fn hellos_and_errors_survive_arbitrary_bytes(
        words: [u32; 14], hashes: (u64, u64), model: [u8; 32], bytes in prop::collection::vec(any::<u8>(), 0..400), raw: [u8; 64], text: String,
    ) {
        let [rank, ranks, context, transports, n_layer, n_embd, n_vocab, quant_bits, start, step, per, flags, one_shot_bytes_max, piece_bytes] = words;
        let hello = Hello {
            rank, ranks, context, transports: TransportSet::from_bits(transports),
            layout_hash: hashes.0, n_layer, n_embd, n_vocab, quant_bits, switches: hashes.1,
            schedule: [start, step, per], flags, model, ways: SumLimits { one_shot_bytes_max, piece_bytes },
        };
        prop_assert_eq!(hello.encode().len(), HELLO_BYTES);
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let _ = Hello::decode(&bytes);
        if let Some(hello) = v7::Hello::decode(&raw) {
            prop_assert_eq!(&hello.encode()[..60], &raw[..60]);
        }
        let _ = TpError::decode(1, &bytes);
        let at = Position { layer: n_layer, gate: GateName::Attention, seq: hashes.0 };
        let error = TpError { rank, at, cause: Cause::Local(text) };
        let told = TpError::decode(7, &error.encode()).unwrap();
        prop_assert_eq!((told.rank, told.at, told.cause.code()), (7, at, error.cause.code()));
        // However often it is passed on, who was blamed first and the words stay.
        prop_assert_eq!(TpError::decode(7, &told.encode()), Some(told.clone()));
        prop_assert!(error.encode().len() <= Kind::Error.payload_bytes_max() as usize);
    }
}
