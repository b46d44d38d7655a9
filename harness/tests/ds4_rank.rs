//! The command as one of two ranks of ds4's own protocol, beside itself and beside a small rank that
//! is written here from the protocol's description and shares no code with it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::Duration;

use common::processes::{ds4, ended, free_port, until_said};

const MAGIC: u32 = 0x4453_3454;
const BULK_MAGIC: u32 = 0x4453_3442;
const LAYERS: u16 = 3;
const VEC_BYTES: usize = 4 * 64;
const VOCABULARY: usize = 1024;

fn rank(role: &str, port: u16, more: &[&str]) -> Child {
    let door = if role == "leader" {
        "--listen"
    } else {
        "--coordinator"
    };
    ds4()
        .args(["--tensor-parallel", "--protocol", "ds4-v7", "--role", role])
        .args([door, "127.0.0.1", &port.to_string()])
        .args(["--n-layer", "3", "--n-embd", "64", "--format", "json"])
        .args(more)
        .spawn()
        .unwrap()
}

fn dial(port: u16) -> TcpStream {
    patient(TcpStream::connect(("127.0.0.1", port)).unwrap())
}

fn patient(stream: TcpStream) -> TcpStream {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

fn take(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A rank that holds no model: its vectors are zeros, its logits too.
struct Small {
    control: TcpStream,
    data: TcpStream,
    row_seq: u64,
    bulk_seq: u64,
    gates: u64,
}

impl Small {
    fn new(control: TcpStream, data: TcpStream) -> Self {
        Self {
            control,
            data,
            row_seq: 1,
            bulk_seq: 1,
            gates: 0,
        }
    }

    fn hello(role: u32) -> Vec<u8> {
        let mut words = vec![MAGIC, 7, role, 0, 0, 0, 0, 3, 64, 1024, 0];
        words.extend([if role == 1 { 4096 } else { 0 }, 0, 1, 6, 0]);
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    fn say(&mut self, code: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        for word in [MAGIC, code, u32::try_from(payload.len()).unwrap()] {
            frame.extend(word.to_le_bytes());
        }
        frame.extend(payload);
        self.control.write_all(&frame).unwrap();
    }

    fn hear(&mut self) -> (u32, Vec<u8>) {
        let head = take(&mut self.control, 12);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), MAGIC);
        (word(4), take(&mut self.control, word(8) as usize))
    }

    /// Writes its whole side, then reads the other.
    fn gate(&mut self, magic: u32, layer: u16, field: u16, bytes: usize) {
        let seq = if magic == MAGIC {
            &mut self.row_seq
        } else {
            &mut self.bulk_seq
        };
        let mut head = magic.to_le_bytes().to_vec();
        head.extend(layer.to_le_bytes());
        head.extend(field.to_le_bytes());
        head.extend(seq.to_le_bytes());
        *seq += 1;
        self.gates += 1;
        self.data.write_all(&head).unwrap();
        self.data.write_all(&vec![0; bytes]).unwrap();
        assert_eq!(take(&mut self.data, 16), head);
        take(&mut self.data, bytes);
    }

    fn token(&mut self) {
        for slot in 0..2 * LAYERS {
            self.gate(MAGIC, slot / 2, slot % 2, VEC_BYTES);
        }
    }

    fn batch(&mut self, rows: u16) {
        for slot in 0..2 * LAYERS {
            self.gate(BULK_MAGIC, slot / 2, rows, usize::from(rows) * VEC_BYTES);
        }
    }

    fn prompt(&mut self, tokens: usize) {
        for slot in 0..2 * LAYERS {
            self.gate(BULK_MAGIC, slot / 2, 0x0b16, tokens * VEC_BYTES);
        }
    }

    fn ack(&mut self, session: u64) {
        self.say(17, &[session.to_le_bytes(), [0; 8]].concat());
    }

    fn logits(&mut self, shares: usize) {
        for _ in 0..shares {
            self.say(10, &[0; VOCABULARY / 2 * 4]);
        }
    }

    /// Does what the leader says until it says stop.
    fn follow(&mut self) {
        loop {
            let (code, payload) = self.hear();
            let count = |at: usize| u32::from_le_bytes(payload[at..at + 4].try_into().unwrap());
            match code {
                1 => {
                    self.prompt(count(8) as usize);
                    self.ack(1);
                    self.logits(1);
                }
                2 => {
                    self.token();
                    self.logits(1);
                }
                3 => {}
                5 => return,
                11 => self.batch(u16::try_from(count(8)).unwrap()),
                12 => {
                    for _ in 0..count(4) {
                        self.token();
                        self.logits(1);
                    }
                }
                13 | 14 => self.ack(1),
                other => panic!("command {other}"),
            }
        }
    }
}

#[test]
fn two_commands_speak_it_and_end_in_order() {
    let port = free_port();
    let worker = rank("worker", port, &[]);
    let (code, lead, said) = ended(rank("leader", port, &["--tokens", "20"]));
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("exchanged and not verified"), "{said}");
    let (code, follow, said) = ended(worker);
    assert_eq!(code, 0, "{said}");
    assert_eq!(lead["protocol"], "ds4-v7");
    assert_eq!(
        (&lead["gates"], &lead["verified_bytes"]),
        (&138.into(), &0.into())
    );
    assert_eq!(lead["state_hash"], follow["state_hash"]);
}

#[test]
fn the_command_leads_a_rank_that_is_not_ours() {
    let port = free_port();
    let mut leader = rank("leader", port, &["--tokens", "20"]);
    until_said(&mut leader, "waiting for ranks");
    let mut control = dial(port);
    control.write_all(&Small::hello(2)).unwrap();
    assert_eq!(take(&mut control, 64)[..16], Small::hello(1)[..16]);
    let mut small = Small::new(control, dial(port));
    small.follow();
    let (code, lead, said) = ended(leader);
    assert_eq!(code, 0, "{said}");
    assert_eq!(lead["gates"], small.gates);
    assert_eq!(lead["tokens"], 20);
}

#[test]
fn the_command_follows_a_rank_that_is_not_ours() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let worker = rank("worker", listener.local_addr().unwrap().port(), &[]);
    let mut control = patient(listener.accept().unwrap().0);
    control.write_all(&Small::hello(1)).unwrap();
    assert_eq!(take(&mut control, 64), Small::hello(2));
    let mut small = Small::new(control, patient(listener.accept().unwrap().0));
    let session = 1_u64.to_le_bytes();
    let list = |tokens: &[u32]| {
        let count = u32::try_from(tokens.len()).unwrap();
        let words = [&[count, 0], tokens].concat();
        let words: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        [&session[..], &words].concat()
    };
    let item = |token: u8| [&session[..], &[token, 0, 0, 0, 0, 0, 0, 0]].concat();
    let hears = |small: &mut Small, ack: bool, shares: usize| {
        let codes: Vec<u32> = (0..usize::from(ack) + shares)
            .map(|_| small.hear().0)
            .collect();
        let want = [vec![17; usize::from(ack)], vec![10; shares]].concat();
        assert_eq!(codes, want);
    };
    small.say(13, &[&session[..], &[0, 16, 0, 0, 0, 0, 0, 0]].concat());
    hears(&mut small, true, 0);
    small.say(1, &list(&[11, 12, 13]));
    small.prompt(3);
    hears(&mut small, true, 1);
    for seq in 1..=5_u64 {
        small.say(
            2,
            &[&session[..], &seq.to_le_bytes(), &[42, 0, 0, 0, 0, 0, 0, 0]].concat(),
        );
        small.token();
        hears(&mut small, false, 1);
    }
    small.say(
        15,
        &[vec![2, 0, 0, 0, 0, 0, 0, 0], item(7), item(8)].concat(),
    );
    small.batch(2);
    hears(&mut small, true, 2);
    let mut mixed = session.to_vec();
    mixed.extend([2, 0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
    small.say(16, &[mixed, item(9)].concat());
    small.prompt(2);
    small.batch(1);
    hears(&mut small, true, 2);
    small.say(11, &list(&[3, 4]));
    small.batch(2);
    small.say(12, &[0, 0, 0, 0, 1, 0, 0, 0]);
    small.token();
    hears(&mut small, false, 1);
    small.say(3, &[&session[..], &[1, 0, 0, 0, 0, 0, 0, 0]].concat());
    small.say(4, &session);
    small.say(14, &session);
    hears(&mut small, true, 0);
    small.say(5, &[]);
    let (code, follow, said) = ended(worker);
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&follow["gates"], &follow["tokens"]),
        (&small.gates.into(), &5.into())
    );
}

#[test]
fn a_rank_of_another_version_is_named_and_ends_the_command() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let worker = rank("worker", listener.local_addr().unwrap().port(), &[]);
    let mut control = patient(listener.accept().unwrap().0);
    let mut hello = Small::hello(1);
    hello[4] = 14;
    control.write_all(&hello).unwrap();
    let (code, value, said) = ended(worker);
    assert_eq!(code, 1, "{value}{said}");
    assert!(
        said.contains("protocol version is 7 here and 14 there"),
        "{said}"
    );
}

#[test]
fn a_key_is_refused_as_the_protocol_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tp.key");
    std::fs::write(&file, "5a".repeat(32)).unwrap();
    let file = file.display().to_string();
    let (code, _, said) = ended(rank("leader", 1, &["--key-file", &file]));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--protocol ds4-v7 has no keys"), "{said}");
}
