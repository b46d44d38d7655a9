//! How long two ranks take to connect and to prove the key to each other.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use ds4_engine::tp::trust::{Channel, Dial, Dialer, Key, Listener, Step};

use super::words;
use crate::stopwatch::Stopwatch;

/// Times of as many key exchanges over loopback, in nanoseconds: from before the connection is
/// made until the dialer has the verdict, by when both sides are proved.
pub(super) fn key_exchanges(count: usize) -> Result<Vec<f64>, String> {
    let socket = TcpListener::bind(("127.0.0.1", 0)).map_err(words)?;
    let address = socket.local_addr().map_err(words)?;
    let accepting = thread::spawn(move || {
        for number in 0..count {
            listen(socket.accept().map_err(words)?.0, number)?;
        }
        Ok::<(), String>(())
    });
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        let watch = Stopwatch::start();
        dial(TcpStream::connect(address).map_err(words)?, number)?;
        times.push(watch.elapsed_ns() as f64);
    }
    accepting
        .join()
        .map_err(|_| "the listening end panicked".to_owned())??;
    Ok(times)
}

fn key() -> Key {
    Key::new([1; 32])
}

/// Nonces need not be random to be timed.
fn nonce(number: usize, side: u8) -> [u8; 32] {
    let mut nonce = [side; 32];
    if let Some(front) = nonce.first_chunk_mut() {
        *front = (number as u64).to_le_bytes();
    }
    nonce
}

fn listen(mut stream: TcpStream, number: usize) -> Result<(), String> {
    stream.set_nodelay(true).map_err(words)?;
    let mut listener = Listener::new(key(), 0, 2, [3; 16], nonce(number, 1));
    loop {
        stream.write_all(listener.to_write()).map_err(words)?;
        let count = listener.to_write().len();
        listener.wrote(count);
        let count = stream.read(listener.to_read()).map_err(words)?;
        match listener.read(count, |_, _| true) {
            Step::More if count > 0 => {}
            Step::Done(_) => return stream.write_all(listener.to_write()).map_err(words),
            Step::More => return Err("the dialer went away".to_owned()),
            Step::Refused(why) => return Err(why.to_string()),
        }
    }
}

fn dial(mut stream: TcpStream, number: usize) -> Result<(), String> {
    stream.set_nodelay(true).map_err(words)?;
    let dial = Dial {
        channel: Channel::Control,
        own: 1,
        peer: 0,
        ranks: 2,
        session: [0; 16],
    };
    let mut dialer = Dialer::new(key(), dial, nonce(number, 2));
    loop {
        stream.write_all(dialer.to_write()).map_err(words)?;
        let count = dialer.to_write().len();
        dialer.wrote(count);
        let count = stream.read(dialer.to_read()).map_err(words)?;
        match dialer.read(count) {
            Step::More if count > 0 => {}
            Step::Done(_) => return Ok(()),
            Step::More => return Err("the listener went away".to_owned()),
            Step::Refused(why) => return Err(why.to_string()),
        }
    }
}
