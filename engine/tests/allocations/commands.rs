//! Two ranks with commands, answers and hashes, over TCP, over TCP encrypted, and over shared memory.

use std::sync::{Arc, Barrier};
use std::thread;

use allocation_counter::measure;
use ds4_engine::tp::command::Message;
use ds4_engine::tp::hello::Identity;
use ds4_engine::tp::schedule::{Schedule, Work};
use ds4_engine::tp::slab::{SlabGeometry, SlabLayout};
use ds4_engine::tp::transport::{Transport, TransportSet};
use ds4_engine::tp::trust::Key;
use ds4_engine::transport::{Rank, Said, Setup, Wait};

const LAYERS: u32 = 4;
const WIDTH: u32 = 1024;
const WARM_TOKENS: u64 = 200;
const TOKENS: u64 = 1000;
const SESSION: u64 = 1;

/// A transport, and whether it is encrypted.
type Link = (Transport, bool);

fn setups((transport, encrypt): Link) -> Vec<Setup> {
    let layout = SlabLayout::aligned(SlabGeometry::new(LAYERS, WIDTH)).unwrap();
    let identity = Identity {
        n_vocab: 512,
        split_logits: true,
        ..Identity::new(layout, Schedule::every_gate(LAYERS).unwrap())
    };
    let mut setups = Setup::on_loopback(identity, &Key::new([9; 32])).unwrap();
    for setup in &mut setups {
        setup.config.context = 1 << 20;
        setup.config.transports = TransportSet::of(&[transport]);
        setup.encrypt = encrypt;
        // Short looks, so that sleeping is counted too.
        setup.wait = Wait { spin_ns: 2_000 };
    }
    setups
}

/// One rank of a run: `token` runs a token, `both` waits for the other rank.
struct Worker {
    rank: Rank,
    schedule: Schedule,
    out: Vec<u8>,
    place: Vec<u8>,
    share: Vec<u8>,
}

impl Worker {
    fn open(setup: Setup) -> Self {
        let rank = Rank::open(setup, &mut |_| {}).unwrap();
        let bytes = WIDTH as usize * 4;
        Self {
            rank,
            schedule: Schedule::every_gate(LAYERS).unwrap(),
            out: vec![1; bytes],
            place: vec![0; bytes],
            share: vec![2; 512 * 4 / 2],
        }
    }

    fn gates(&mut self) {
        for gate in self.schedule.gates(Work::Token) {
            let mut places = [self.place.as_mut_slice()];
            self.rank.exchange(gate, &self.out, &mut places).unwrap();
        }
    }

    /// The leader's side of a token.
    fn ask(&mut self, number: u64) {
        let seq = self.rank.session().next_eval();
        let message = Message::Eval {
            session: SESSION,
            seq,
            token: 5,
        };
        self.rank.command(&message).unwrap();
        self.gates();
        self.answered();
        if number.is_multiple_of(50) {
            self.rank.check_step(number, 7).unwrap();
            while !matches!(self.rank.hear().unwrap(), Said::InStep { .. }) {}
        }
    }

    fn answered(&mut self) {
        let Said::Message(mail) = self.rank.hear().unwrap() else {
            panic!("an answer was awaited");
        };
        self.rank.done_with(mail);
    }

    /// The worker's side of a token.
    fn obey(&mut self, number: u64) {
        let Said::Message(mail) = self.rank.hear().unwrap() else {
            panic!("a command was awaited");
        };
        assert!(matches!(mail.message(), Some(Message::Eval { .. })));
        self.rank.done_with(mail);
        self.gates();
        self.rank.answer(&Message::Logits(&self.share)).unwrap();
        if number.is_multiple_of(50) {
            while !matches!(self.rank.hear().unwrap(), Said::CheckStep { .. }) {}
            self.rank.check_step(number, 7).unwrap();
            while !matches!(self.rank.hear().unwrap(), Said::InStep { .. }) {}
        }
    }
}

fn lead(setup: Setup, both: &Barrier) -> u64 {
    let mut worker = Worker::open(setup);
    let message = Message::SessionCreate {
        session: SESSION,
        context: 1 << 20,
    };
    worker.rank.command(&message).unwrap();
    worker.answered();
    for number in 0..WARM_TOKENS {
        worker.ask(number);
    }
    both.wait();
    let taken = measure(|| (0..TOKENS).for_each(|number| worker.ask(number)));
    worker.rank.finish().unwrap();
    taken.count_total
}

fn follow(setup: Setup, both: &Barrier) -> u64 {
    let mut worker = Worker::open(setup);
    let Said::Message(mail) = worker.rank.hear().unwrap() else {
        panic!("a session was awaited");
    };
    worker.rank.done_with(mail);
    let ack = Message::Ack {
        session: SESSION,
        status: 0,
    };
    worker.rank.answer(&ack).unwrap();
    for number in 0..WARM_TOKENS {
        worker.obey(number);
    }
    both.wait();
    let taken = measure(|| (0..TOKENS).for_each(|number| worker.obey(number)));
    while !matches!(worker.rank.hear().unwrap(), Said::Finished) {}
    taken.count_total
}

#[test]
fn eight_thousand_gates_and_a_thousand_commands_ask_for_no_memory() {
    let links = [
        (Transport::Tcp, false),
        (Transport::Tcp, true),
        (Transport::Shm, false),
    ];
    for link in links {
        let [leader, worker] = setups(link).try_into().unwrap();
        let both = Arc::new(Barrier::new(2));
        let there = Arc::clone(&both);
        let leader = thread::spawn(move || lead(leader, &there));
        let followed = follow(worker, &both);
        let led = leader.join().unwrap();
        assert_eq!((led, followed), (0, 0), "{link:?}: memory was asked for");
    }
}
