//! Where the ranks of a group meet: a thread of the process that named the group. It hears every
//! rank's part and answers each with the sum.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// What a group's name begins with.
const MAGIC: [u8; 8] = *b"DS4-SIMU";
/// Bytes of a group's name.
pub(crate) const NAME_BYTES: usize = 128;
/// What the hub says when all are there.
const WELCOME: u8 = 1;

/// Names a group and waits for its ranks, on a thread that ends with them.
pub(crate) fn open() -> io::Result<[u8; NAME_BYTES]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let name: Vec<u8> = MAGIC.into_iter().chain(port.to_le_bytes()).collect();
    let mut whole = [0; NAME_BYTES];
    for (to, from) in whole.iter_mut().zip(name) {
        *to = from;
    }
    thread::Builder::new().spawn(move || {
        // Connections that break end the group; its ranks see that on theirs.
        let _ = serve(&listener);
    })?;
    Ok(whole)
}

/// Joins a group; returns when all ranks have.
pub(crate) fn join(name: &[u8; NAME_BYTES], rank: u32, ranks: u32) -> io::Result<TcpStream> {
    let [magic @ .., low, high] = name.first_chunk::<10>().ok_or(io::ErrorKind::InvalidData)?;
    if *magic != MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let port = u16::from_le_bytes([*low, *high]);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.write_all(&rank.to_le_bytes())?;
    stream.write_all(&ranks.to_le_bytes())?;
    let mut welcome = [0];
    stream.read_exact(&mut welcome)?;
    if welcome == [WELCOME] {
        Ok(stream)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Gives the own part and takes the sum.
pub(crate) fn sum(stream: &mut TcpStream, part: &mut [u8]) -> io::Result<()> {
    let bytes = part.len() as u64;
    stream.write_all(&bytes.to_le_bytes())?;
    stream.write_all(part)?;
    stream.read_exact(part)
}

fn word(stream: &mut TcpStream) -> io::Result<u32> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    Ok(u32::from_le_bytes(word))
}

fn serve(listener: &TcpListener) -> io::Result<()> {
    let mut members: Vec<(u32, TcpStream)> = Vec::new();
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let (rank, ranks) = (word(&mut stream)?, word(&mut stream)?);
        members.push((rank, stream));
        if members.len() >= ranks as usize {
            break;
        }
    }
    members.sort_by_key(|(rank, _)| *rank);
    for (_, stream) in &mut members {
        stream.write_all(&[WELCOME])?;
    }
    loop {
        let mut sum: Vec<u8> = Vec::new();
        for (_, stream) in &mut members {
            let mut length = [0; 8];
            if stream.read_exact(&mut length).is_err() {
                // As over a link of GPUs, the others are not told: they wait.
                return wait_for_all(members);
            }
            let bytes = usize::try_from(u64::from_le_bytes(length)).unwrap_or(0);
            let mut part = vec![0; bytes];
            stream.read_exact(&mut part)?;
            if sum.is_empty() {
                sum = part;
            } else {
                add(&mut sum, &part);
            }
        }
        for (_, stream) in &mut members {
            stream.write_all(&sum)?;
        }
    }
}

/// Holds the connections until every rank has closed its own.
fn wait_for_all(members: Vec<(u32, TcpStream)>) -> io::Result<()> {
    for (_, mut stream) in members {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
    }
    Ok(())
}

fn add(sum: &mut [u8], part: &[u8]) {
    let (sums, _) = sum.as_chunks_mut::<4>();
    let (parts, _) = part.as_chunks::<4>();
    for (sum, part) in sums.iter_mut().zip(parts) {
        *sum = (f32::from_le_bytes(*sum) + f32::from_le_bytes(*part)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_know_the_name_get_the_sum_in_their_order() {
        let name = open().unwrap();
        let values = [1.0e8_f32, 1.0, -1.0e8];
        let sums: Vec<f32> = thread::scope(|scope| {
            let ranks = (0..3).map(|rank: u32| {
                scope.spawn(move || {
                    let mut stream = join(&name, rank, 3).unwrap();
                    let mut part = values[rank as usize].to_le_bytes();
                    sum(&mut stream, &mut part).unwrap();
                    f32::from_le_bytes(part)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(sums, [(1.0e8 + 1.0) + -1.0e8; 3]);
        assert!(join(&[0; NAME_BYTES], 0, 1).is_err());
    }
}
