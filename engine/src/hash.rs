//! A hash of state that is the same on every machine and in every release.

/// FNV-1a over 64-bit words (Fowler, Noll, Vo; parameters of the 64-bit variant).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHash(u64);

impl Default for StateHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl StateHash {
    /// Mixes one number in.
    pub fn word(&mut self, word: u64) -> &mut Self {
        for byte in word.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self
    }

    /// The hash of all numbers so far, in order.
    #[must_use]
    pub fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_fnv_1a() {
        // The 64-bit FNV-1a of eight zero bytes, from the reference implementation.
        let mut hash = StateHash::default();
        hash.word(0);
        assert_eq!(hash.finish(), 0xa8c7_f832_281a_39c5);
    }

    #[test]
    fn order_matters() {
        let (mut a, mut b) = (StateHash::default(), StateHash::default());
        a.word(1);
        a.word(2);
        b.word(2);
        b.word(1);
        assert_ne!(a.finish(), b.finish());
    }
}
