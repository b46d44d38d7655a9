//! Setting every byte to one value.

/// Sets every byte of `memory` to `value`.
pub fn fill(memory: &mut [u8], value: u8) {
    memory.fill(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_set_and_no_other() {
        let mut memory = [0; 9];
        fill(&mut memory[1..8], 7);
        assert_eq!(memory, [0, 7, 7, 7, 7, 7, 7, 7, 0]);
    }
}
