//! Two ends of a handshake in memory.

use proptest::prelude::*;

use super::*;

const SESSION: SessionId = [7; 16];

fn key(byte: u8) -> Key {
    Key::new([byte; 32])
}

fn dial(channel: Channel) -> Dial {
    let session = match channel {
        Channel::Control => [0; 16],
        Channel::Data => SESSION,
    };
    Dial {
        channel,
        own: 1,
        peer: 0,
        ranks: 2,
        session,
    }
}

fn listener(key: Key) -> Listener {
    Listener::new(key, 0, 2, SESSION, [1; 32])
}

/// Moves bytes until nobody has more to say, a few at a time.
fn talk(listener: &mut Listener, dialer: &mut Dialer, piece: usize) -> (Step, Step) {
    let (mut here, mut there) = (Step::More, Step::More);
    for _ in 0..1000 {
        let bytes: Vec<u8> = listener.to_write().iter().copied().take(piece).collect();
        let want = dialer.to_read();
        let count = want.len().min(bytes.len());
        want[..count].copy_from_slice(&bytes[..count]);
        listener.wrote(count);
        if count > 0 {
            there = dialer.read(count);
        }
        let bytes: Vec<u8> = dialer.to_write().iter().copied().take(piece).collect();
        let want = listener.to_read();
        let count = want.len().min(bytes.len());
        want[..count].copy_from_slice(&bytes[..count]);
        dialer.wrote(count);
        if count > 0 {
            let step = listener.read(count, |_, _| true);
            if step != Step::More {
                here = step;
            }
        }
    }
    (here, there)
}

#[test]
fn the_same_key_proves_both_sides_on_both_channels() {
    for channel in [Channel::Control, Channel::Data] {
        for (piece, secret) in [(1, key(5)), (1000, Key::public())] {
            let mut here = listener(secret.clone());
            let mut there = Dialer::new(secret, dial(channel), [2; 32]);
            let (a, b) = talk(&mut here, &mut there, piece);
            let proven = |peer| {
                Step::Done(Proven {
                    channel,
                    peer,
                    session: SESSION,
                })
            };
            assert_eq!((a, b), (proven(1), proven(0)));
        }
    }
}

#[test]
fn other_keys_and_missing_keys_are_told_apart() {
    let mut here = listener(key(5));
    let mut there = Dialer::new(key(6), dial(Channel::Control), [2; 32]);
    let (a, b) = talk(&mut here, &mut there, 64);
    assert_eq!(a, Step::Refused(Refused::Proof));
    assert_eq!(b, Step::Refused(Refused::Told(4)));

    for (ours, theirs) in [(key(5), Key::public()), (Key::public(), key(5))] {
        let own_key = !theirs.is_public();
        let mut here = listener(ours);
        let mut there = Dialer::new(theirs, dial(Channel::Control), [2; 32]);
        let (a, b) = talk(&mut here, &mut there, 64);
        assert_eq!(a, Step::Refused(Refused::OneSided { own_key: !own_key }));
        assert_eq!(b, Step::Refused(Refused::OneSided { own_key }));
        assert_eq!(there.answer.unwrap()[ANSWER_BYTES - PROOF_BYTES..], [0; 32]);
    }
}

#[test]
fn both_sides_learn_that_only_one_encrypts() {
    for own in [false, true] {
        let mut here = listener(key(5)).sealing(own);
        let mut there = Dialer::new(key(5), dial(Channel::Control), [2; 32]).sealing(!own);
        let (a, b) = talk(&mut here, &mut there, 64);
        assert_eq!(a, Step::Refused(Refused::OneEncrypts { own }));
        assert_eq!(b, Step::Refused(Refused::OneEncrypts { own: !own }));
    }
}

#[test]
fn a_dialer_whom_the_challenge_does_not_suit_takes_no_verdict() {
    let mut here = listener(key(5));
    let mut there = Dialer::new(Key::public(), dial(Channel::Control), [2; 32]);
    there.to_read().copy_from_slice(here.to_write());
    assert_eq!(there.read(CHALLENGE_BYTES), Step::More);
    // One that does not say why it refuses, or does not refuse, changes nothing.
    here.to_read().copy_from_slice(there.to_write());
    here.read(ANSWER_BYTES, |_, _| true);
    there.to_read().fill(0);
    let step = there.read(VERDICT_BYTES);
    assert_eq!(step, Step::Refused(Refused::OneSided { own_key: false }));
}

#[test]
fn the_first_bytes_of_another_protocol_are_answered_at_once() {
    for (first, refused) in [
        (v7::MAGIC.to_le_bytes(), Refused::Ds4V7),
        (*b"GET ", Refused::NotOurs),
    ] {
        let mut here = listener(key(5));
        here.to_read()[..4].copy_from_slice(&first);
        assert_eq!(here.read(3, |_, _| true), Step::More);
        assert_eq!(here.read(1, |_, _| true), Step::Refused(refused));
    }
}

#[test]
fn a_replayed_answer_is_refused() {
    let mut here = listener(key(5));
    let mut there = Dialer::new(key(5), dial(Channel::Control), [2; 32]);
    talk(&mut here, &mut there, 1000);
    let recorded = there.answer.unwrap();
    // The same listener with a fresh nonce, as for each connection.
    let mut again = Listener::new(key(5), 0, 2, SESSION, [9; 32]);
    again.to_read().copy_from_slice(&recorded);
    let step = again.read(ANSWER_BYTES, |_, _| true);
    assert_eq!(step, Step::Refused(Refused::Proof));
}

#[test]
fn a_listener_cannot_be_fooled_by_its_own_words() {
    // A stranger who holds no key sends the challenge's bytes and the listener's own proof back.
    let mut here = listener(key(5));
    let mut there = Dialer::new(key(5), dial(Channel::Control), [2; 32]);
    talk(&mut here, &mut there, 1000);
    let mut mirrored = there.answer.unwrap();
    mirrored[ANSWER_BYTES - PROOF_BYTES..].copy_from_slice(&here.verdict.unwrap()[32..]);
    let mut again = listener(key(5));
    again.to_read().copy_from_slice(&mirrored);
    assert_eq!(
        again.read(ANSWER_BYTES, |_, _| true),
        Step::Refused(Refused::Proof)
    );
}

#[test]
fn the_data_channel_is_bound_to_the_session() {
    let mut other = dial(Channel::Data);
    other.session = [8; 16];
    // Holding the key is not enough.
    let mut there = Dialer::new(key(5), other, [2; 32]);
    let (step, _) = talk(&mut listener(key(5)), &mut there, 64);
    assert_eq!(step, Step::Refused(Refused::Proof));
}

#[test]
fn only_awaited_ranks_come_in() {
    for changed in [
        Dial {
            own: 0,
            ..dial(Channel::Control)
        },
        Dial {
            own: 2,
            ..dial(Channel::Control)
        },
        Dial {
            peer: 1,
            ..dial(Channel::Control)
        },
        Dial {
            ranks: 3,
            ..dial(Channel::Control)
        },
    ] {
        let mut there = Dialer::new(key(5), changed, [2; 32]);
        let (step, told) = talk(&mut listener(key(5)), &mut there, 64);
        assert_eq!(step, Step::Refused(Refused::Rank), "{changed:?}");
        assert_eq!(told, Step::Refused(Refused::Told(6)));
    }
    let mut here = listener(key(5));
    let mut there = Dialer::new(key(5), dial(Channel::Control), [2; 32]);
    let challenge = here.to_write().to_vec();
    there.to_read().copy_from_slice(&challenge);
    there.read(CHALLENGE_BYTES);
    here.to_read().copy_from_slice(there.to_write());
    let step = here.read(ANSWER_BYTES, |_, _| false);
    assert_eq!(step, Step::Refused(Refused::Rank));
}

#[test]
fn keys_are_read_as_written_and_never_printed() {
    let key = Key::new([0x3c; 32]);
    assert_eq!(Key::parse(&format!(" {}\n", key.to_hex())), Ok(key.clone()));
    assert_eq!(format!("{key:?}"), "Key(..)");
    for text in [
        "",
        "00",
        &"0".repeat(64),
        &"g".repeat(64),
        &"a".repeat(63),
        &"a".repeat(66),
    ] {
        assert_eq!(Key::parse(text), Err(KeyError), "{text}");
    }
}

proptest! {
    #[test]
    fn strangers_bytes_are_never_taken(bytes in prop::collection::vec(any::<u8>(), ANSWER_BYTES), flip in 0_usize..ANSWER_BYTES * 8) {
        let mut here = listener(key(5));
        here.to_read().copy_from_slice(&bytes);
        prop_assert!(matches!(here.read(ANSWER_BYTES, |_, _| true), Step::Refused(_)));

        // A true answer with one bit changed is no answer either.
        let mut here = listener(key(5));
        let mut there = Dialer::new(key(5), dial(Channel::Control), [2; 32]);
        there.to_read().copy_from_slice(here.to_write());
        there.read(CHALLENGE_BYTES);
        let mut answer = there.to_write().to_vec();
        answer[flip / 8] ^= 1 << (flip % 8);
        here.to_read().copy_from_slice(&answer);
        prop_assert!(matches!(here.read(ANSWER_BYTES, |_, _| true), Step::Refused(_)));
    }

    #[test]
    fn a_dialer_takes_no_verdict_but_the_listeners(flip in 0_usize..VERDICT_BYTES * 8) {
        let mut here = listener(key(5));
        let mut there = Dialer::new(key(5), dial(Channel::Data), [2; 32]);
        there.to_read().copy_from_slice(here.to_write());
        there.read(CHALLENGE_BYTES);
        here.to_read().copy_from_slice(there.to_write());
        here.read(ANSWER_BYTES, |_, _| true);
        let mut verdict = here.to_write().to_vec();
        verdict[flip / 8] ^= 1 << (flip % 8);
        there.to_read().copy_from_slice(&verdict);
        prop_assert!(matches!(there.read(VERDICT_BYTES), Step::Refused(_)));
    }
}
