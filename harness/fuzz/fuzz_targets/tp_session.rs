//! A session that is fed any bytes on both connections neither panics nor passes a gate.
#![no_main]

use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::Schedule;
use ds4_engine::tp::session::{Config, Dialect, Session};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::time::{Deadlines, Time};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Channel;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, bool, Vec<u8>)| {
    let (leads, v7, bytes) = input;
    let (Ok(layout), Ok(schedule)) = (
        SlabLayout::ds4(SlabGeometry::new(2, 3)),
        Schedule::every_gate(2),
    ) else {
        return;
    };
    let identity = Identity {
        model: [3; 32],
        n_vocab: 16,
        quant_bits: 2,
        switches: 0,
        layout,
        schedule,
        split_logits: true,
        payload_crc: true,
    };
    let dialect = if v7 {
        Dialect::Ds4V7 {
            gguf_bytes: 1_234_567_890,
            model_id: 1,
        }
    } else {
        Dialect::Native
    };
    let (rank, peer) = if leads { (0, 1) } else { (1, 0) };
    let mut session = Session::new(
        Time::ZERO,
        Config {
            rank,
            identity,
            context: 8,
            transports: TransportSet::of(&[Transport::Tcp]),
            deadlines: Deadlines::default(),
            dialect,
        },
    );
    for channel in [Channel::Control, Channel::Data] {
        session.attach(Time::ZERO, peer, channel);
    }
    let mut rest = bytes.as_slice();
    loop {
        let want = session.control_to_read(peer);
        let count = want.len().min(rest.len());
        want[..count].copy_from_slice(&rest[..count]);
        rest = &rest[count..];
        if count == 0 {
            break;
        }
        session.control_read(Time(1), peer, count);
        while session.poll_event(Time(1)).is_some() {}
    }
    session.handle_time(Time(2));
    assert_eq!(session.gates_done(), 0);
});
