//! Paths and ranks on simulated devices.

mod paths;
mod ranks;

fn pattern(bytes: usize, salt: u64) -> Vec<u8> {
    (0..bytes as u64)
        .map(|i| (i.wrapping_mul(salt * 2 + 3) >> 3).to_le_bytes()[0])
        .collect()
}
