//! A checksum that any number of threads can compute in any order.

/// The sum of mixed (position, byte) pairs, modulo 2^64.
///
/// Each byte is mixed with its position, so that moved bytes change the sum; sums of parts add up,
/// so that blocks of a kernel need no order among them. After position `u64::MAX` comes 0.
#[must_use]
pub fn checksum(memory: &[u8], first_position: u64) -> u64 {
    let mut position = first_position;
    memory.iter().fold(0, |sum: u64, byte| {
        let place = position.wrapping_mul(257);
        position = position.wrapping_add(1);
        sum.wrapping_add(mix(place.wrapping_add(u64::from(*byte))))
    })
}

/// The finaliser of splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
/// Generators", 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_parts_is_the_sum_of_the_whole() {
        let memory: Vec<u8> = (0..=255).collect();
        let whole = checksum(&memory, 5);
        let parts = checksum(&memory[..100], 5).wrapping_add(checksum(&memory[100..], 105));
        assert_eq!(whole, parts);
    }

    #[test]
    fn positions_wrap() {
        let whole = checksum(&[1, 2], u64::MAX);
        let parts = checksum(&[1], u64::MAX).wrapping_add(checksum(&[2], 0));
        assert_eq!(whole, parts);
    }

    #[test]
    fn one_flipped_bit_or_two_swapped_bytes_change_the_sum() {
        let memory: Vec<u8> = (0..64).collect();
        for bit in 0..8 * memory.len() {
            let mut flipped = memory.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&flipped, 0), checksum(&memory, 0));
        }
        let mut swapped = memory.clone();
        swapped.swap(3, 4);
        assert_ne!(checksum(&swapped, 0), checksum(&memory, 0));
    }
}
