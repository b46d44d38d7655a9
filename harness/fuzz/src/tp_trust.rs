//! The handshake and the records behind it: nothing that was not proved is accepted, and no bytes
//! change that.

use ds4_engine::tp::seal::Seal;
use ds4_engine::tp::trust::{Channel, Dial, Dialer, Key, Listener, SessionId, Step};

const SESSION: SessionId = [8; 16];

/// The first byte chooses: the bytes as a dialer's, as a listener's, as changes to an honest
/// handshake, or as sealed records and changes to one.
pub fn check(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else {
        return;
    };
    let key = if choice & 4 == 0 {
        Key::new([5; 32])
    } else {
        Key::public()
    };
    let channel = if choice & 8 == 0 {
        Channel::Control
    } else {
        Channel::Data
    };
    let sealed = choice & 16 != 0;
    match choice & 3 {
        3 => records(rest),
        0 => listener(key, sealed, rest),
        1 => dialer(key, channel, sealed, rest),
        _ => changed(key, channel, sealed, rest),
    }
}

fn pair(key: &Key, channel: Channel, sealed: bool) -> (Listener, Dialer) {
    let session = match channel {
        Channel::Control => [0; 16],
        Channel::Data => SESSION,
    };
    let dial = Dial {
        channel,
        own: 1,
        peer: 0,
        ranks: 2,
        session,
    };
    (
        Listener::new(key.clone(), 0, 2, SESSION, [1; 32]).sealing(sealed),
        Dialer::new(key.clone(), dial, [2; 32]).sealing(sealed),
    )
}

fn listener(key: Key, sealed: bool, mut bytes: &[u8]) {
    let (mut listener, _) = pair(&key, Channel::Control, sealed);
    while !bytes.is_empty() {
        let room = listener.to_read();
        let count = room.len().min(bytes.len()).min(usize::from(bytes[0]) + 1);
        if count == 0 {
            return;
        }
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        let step = listener.read(count, |_, _| true);
        assert!(!matches!(step, Step::Done(_)), "{step:?}");
    }
    assert!(listener.to_write().len() <= 128);
}

fn dialer(key: Key, channel: Channel, sealed: bool, mut bytes: &[u8]) {
    let (_, mut dialer) = pair(&key, channel, sealed);
    while !bytes.is_empty() {
        let room = dialer.to_read();
        let count = room.len().min(bytes.len()).min(usize::from(bytes[0]) + 1);
        if count == 0 {
            return;
        }
        room[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        let step = dialer.read(count);
        assert!(!matches!(step, Step::Done(_)), "{step:?}");
        if step != Step::More {
            return;
        }
    }
}

/// An honest handshake in which bits of the three messages are flipped: whoever reads a changed
/// message does not accept.
fn changed(key: Key, channel: Channel, sealed: bool, bytes: &[u8]) {
    let (mut listener, mut dialer) = pair(&key, channel, sealed);
    let mut flips = bytes.as_chunks::<3>().0.iter();
    let mut flipped = [false; 3];
    let mut flips_of = [[0_u8; 112]; 3];
    for [message, place, mask] in flips.by_ref() {
        flips_of[usize::from(message % 3)][usize::from(place % 112)] ^= mask;
    }
    let mut pass = |message: usize, from: &[u8], into: &mut [u8]| {
        for ((into, from), flip) in into.iter_mut().zip(from).zip(&flips_of[message]) {
            *into = from ^ flip;
            flipped[message] |= *flip != 0;
        }
        from.len()
    };
    let count = pass(0, listener.to_write(), dialer.to_read());
    listener.wrote(count);
    let step = dialer.read(count);
    if step != Step::More {
        assert!(matches!(step, Step::Refused(_)));
        return;
    }
    let count = pass(1, dialer.to_write(), listener.to_read());
    dialer.wrote(count);
    let accepted = listener.read(count, |_, _| true);
    let count = pass(2, listener.to_write(), dialer.to_read());
    let done = dialer.read(count);
    let [challenge, answer, verdict] = flipped;
    assert_eq!(
        matches!(accepted, Step::Done(_)),
        !challenge && !answer,
        "{accepted:?} {flipped:?}"
    );
    let wrong = challenge || answer || verdict;
    assert_eq!(
        matches!(done, Step::Done(_)),
        !wrong,
        "{done:?} {flipped:?}"
    );
}

/// Any bytes as records open to nothing; an honest record with a flipped bit neither.
fn records(bytes: &[u8]) {
    const KEY: [u8; 16] = [6; 16];
    let opened = Seal::new(&KEY).open(&mut bytes.to_vec());
    assert!(!matches!(opened, Ok(Some(_))));
    let mut record = Vec::new();
    let sealed = Seal::new(&KEY).seal(&[], bytes, &mut record);
    assert_eq!(sealed, Ok(bytes.len()));
    if let [place, mask, ..] = *bytes {
        let place = usize::from(place) % record.len();
        record[place] ^= mask;
        let opened = Seal::new(&KEY).open(&mut record);
        assert_eq!(matches!(opened, Ok(Some(_))), mask == 0);
    }
}
