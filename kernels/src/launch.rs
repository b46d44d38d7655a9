//! One launch of a kernel: which kernel, and its arguments.

use crate::Pattern;

/// The most arguments that a kernel takes.
pub const MAX_ARGUMENTS: usize = 6;

/// A kernel with its arguments; every address is a device address that the launching device
/// reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Sets `bytes` bytes from `to` on to `value`, as [`crate::fill`].
    Fill {
        /// Where the bytes are.
        to: u64,
        /// How many there are.
        bytes: u64,
        /// What each becomes.
        value: u8,
    },
    /// Writes `words` words of 8 bytes from `to` on, a multiple of 8, as [`Pattern::write`].
    WritePattern {
        /// Where the words are.
        to: u64,
        /// How many there are.
        words: u64,
        /// The position of the first one.
        first_position: u64,
        /// What they become.
        pattern: Pattern,
    },
    /// Compares `words` words from `from` on, a multiple of 8, with the pattern, as
    /// [`Pattern::check`].
    CheckPattern {
        /// Where the words are.
        from: u64,
        /// How many there are.
        words: u64,
        /// The position of the first one.
        first_position: u64,
        /// What they should hold.
        pattern: Pattern,
        /// Two words of 8 bytes, at a multiple of 8: the least wrong position so far, lowered by this launch, and the
        /// number of wrong words, raised by it. Start them with `u64::MAX` and 0.
        result: u64,
    },
    /// Adds the checksum of `bytes` bytes from `from` on to a word of 8 bytes, as
    /// [`crate::checksum`].
    Checksum {
        /// Where the bytes are.
        from: u64,
        /// How many there are.
        bytes: u64,
        /// The position of the first one.
        first_position: u64,
        /// The word that is raised, modulo 2^64, at a multiple of 8.
        sum: u64,
    },
    /// Adds `count` floats of 4 bytes from `other` on to those from `sum` on, both multiples of 4,
    /// as [`crate::add_f32`]. The two are the same floats or share none.
    AddF32 {
        /// What is added to.
        sum: u64,
        /// What is added.
        other: u64,
        /// How many floats there are.
        count: u64,
    },
    /// Passes `gates` gates one after the other, each of `count` floats from `input` on: an even
    /// count, at multiples of 16 and of at most [`crate::gate::PACKET_GATE_BYTES`] in all. What
    /// the peer's launch of the same gates sent is added, in the order of the ranks, into `output`,
    /// which may be `input`.
    GatePackets {
        /// The link, as [`crate::gate`] describes it.
        link: u64,
        /// The own part.
        input: u64,
        /// The sum.
        output: u64,
        /// How many floats there are.
        count: u64,
        /// How many gates.
        gates: u64,
    },
    /// As [`Launch::GatePackets`], for one gate of up to the size for which the landings were made:
    /// `count` is a multiple of 4, `part_bytes` that of [`crate::gate::part_bytes`].
    GateParts {
        /// The link.
        link: u64,
        /// The own part.
        input: u64,
        /// The sum.
        output: u64,
        /// How many floats there are.
        count: u64,
        /// The distance of the two places where parts land.
        part_bytes: u64,
    },
}

/// The kernels, by the name of their entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the launch of that name")]
pub enum Kernel {
    Fill,
    WritePattern,
    CheckPattern,
    Checksum,
    AddF32,
    GatePackets,
    GateParts,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 7] = [
        Self::Fill,
        Self::WritePattern,
        Self::CheckPattern,
        Self::Checksum,
        Self::AddF32,
        Self::GatePackets,
        Self::GateParts,
    ];

    /// The name of the entry point in a module.
    #[must_use]
    pub const fn entry(self) -> &'static str {
        match self {
            Self::Fill => "ds4_fill",
            Self::WritePattern => "ds4_write_pattern",
            Self::CheckPattern => "ds4_check_pattern",
            Self::Checksum => "ds4_checksum",
            Self::AddF32 => "ds4_add_f32",
            Self::GatePackets => "ds4_gate_packets",
            Self::GateParts => "ds4_gate_parts",
        }
    }

    /// The kernel of an entry point.
    #[must_use]
    pub fn from_entry(entry: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.entry() == entry)
    }

    /// How many arguments it takes, each of 8 bytes.
    #[must_use]
    pub const fn arguments(self) -> usize {
        match self {
            Self::Fill | Self::AddF32 => 3,
            Self::Checksum => 4,
            Self::WritePattern | Self::GatePackets | Self::GateParts => 5,
            Self::CheckPattern => 6,
        }
    }
}

impl Launch {
    /// The kernel.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        match self {
            Self::Fill { .. } => Kernel::Fill,
            Self::WritePattern { .. } => Kernel::WritePattern,
            Self::CheckPattern { .. } => Kernel::CheckPattern,
            Self::Checksum { .. } => Kernel::Checksum,
            Self::AddF32 { .. } => Kernel::AddF32,
            Self::GatePackets { .. } => Kernel::GatePackets,
            Self::GateParts { .. } => Kernel::GateParts,
        }
    }

    /// Whether it waits for a launch on another device.
    #[must_use]
    pub const fn is_gate(&self) -> bool {
        matches!(self, Self::GatePackets { .. } | Self::GateParts { .. })
    }

    /// The arguments in the order of the entry point's parameters, [`Kernel::arguments`] of them
    /// and zeros after.
    #[must_use]
    pub fn pack(&self) -> [u64; MAX_ARGUMENTS] {
        match *self {
            Self::Fill { to, bytes, value } => [to, bytes, u64::from(value), 0, 0, 0],
            Self::WritePattern {
                to,
                words,
                first_position,
                pattern,
            } => {
                let (kind, word) = pattern.code();
                [to, words, first_position, kind, word, 0]
            }
            Self::CheckPattern {
                from,
                words,
                first_position,
                pattern,
                result,
            } => {
                let (kind, word) = pattern.code();
                [from, words, first_position, kind, word, result]
            }
            Self::Checksum {
                from,
                bytes,
                first_position,
                sum,
            } => [from, bytes, first_position, sum, 0, 0],
            Self::AddF32 { sum, other, count } => [sum, other, count, 0, 0, 0],
            Self::GatePackets {
                link,
                input,
                output,
                count,
                gates,
            } => [link, input, output, count, gates, 0],
            Self::GateParts {
                link,
                input,
                output,
                count,
                part_bytes,
            } => [link, input, output, count, part_bytes, 0],
        }
    }

    /// What [`Launch::pack`] packed; `None` if a value is none that it makes.
    #[must_use]
    pub fn unpack(kernel: Kernel, arguments: &[u64; MAX_ARGUMENTS]) -> Option<Self> {
        let [a, b, c, d, e, f] = *arguments;
        Some(match kernel {
            Kernel::Fill => Self::Fill {
                to: a,
                bytes: b,
                value: u8::try_from(c).ok()?,
            },
            Kernel::WritePattern => Self::WritePattern {
                to: a,
                words: b,
                first_position: c,
                pattern: Pattern::from_code(d, e)?,
            },
            Kernel::CheckPattern => Self::CheckPattern {
                from: a,
                words: b,
                first_position: c,
                pattern: Pattern::from_code(d, e)?,
                result: f,
            },
            Kernel::Checksum => Self::Checksum {
                from: a,
                bytes: b,
                first_position: c,
                sum: d,
            },
            Kernel::AddF32 => Self::AddF32 {
                sum: a,
                other: b,
                count: c,
            },
            Kernel::GatePackets => Self::GatePackets {
                link: a,
                input: b,
                output: c,
                count: d,
                gates: e,
            },
            Kernel::GateParts => Self::GateParts {
                link: a,
                input: b,
                output: c,
                count: d,
                part_bytes: e,
            },
        })
    }

    /// The size of an element, in bytes.
    #[must_use]
    pub const fn element_bytes(&self) -> u64 {
        match self {
            Self::Fill { .. } | Self::Checksum { .. } => 1,
            Self::WritePattern { .. } | Self::CheckPattern { .. } => 8,
            Self::AddF32 { .. } | Self::GatePackets { .. } | Self::GateParts { .. } => 4,
        }
    }

    /// How many elements the kernel works on; with none of them it has nothing to do.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        match *self {
            Self::Fill { bytes, .. } | Self::Checksum { bytes, .. } => bytes,
            Self::WritePattern { words, .. } | Self::CheckPattern { words, .. } => words,
            Self::AddF32 { count, .. }
            | Self::GatePackets { count, .. }
            | Self::GateParts { count, .. } => count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAUNCHES: [Launch; 7] = [
        Launch::Fill {
            to: 1,
            bytes: 2,
            value: 255,
        },
        Launch::WritePattern {
            to: 8,
            words: 2,
            first_position: 3,
            pattern: Pattern::MovingInversion { word: u64::MAX },
        },
        Launch::CheckPattern {
            from: 8,
            words: 2,
            first_position: 3,
            pattern: Pattern::Random { seed: 9 },
            result: 16,
        },
        Launch::Checksum {
            from: 1,
            bytes: 2,
            first_position: u64::MAX,
            sum: 8,
        },
        Launch::AddF32 {
            sum: 4,
            other: 8,
            count: 3,
        },
        Launch::GatePackets {
            link: 128,
            input: 16,
            output: 32,
            count: 4,
            gates: 2,
        },
        Launch::GateParts {
            link: 128,
            input: 16,
            output: 32,
            count: 4,
            part_bytes: 256,
        },
    ];

    #[test]
    fn what_is_packed_is_unpacked_equal() {
        for (launch, kernel) in LAUNCHES.into_iter().zip(Kernel::ALL) {
            assert_eq!(launch.kernel(), kernel);
            assert_eq!(Kernel::from_entry(kernel.entry()), Some(kernel));
            assert_eq!(Launch::unpack(kernel, &launch.pack()), Some(launch));
            let unused = launch.pack().into_iter().skip(kernel.arguments());
            assert_eq!(unused.sum::<u64>(), 0);
        }
    }

    #[test]
    fn values_that_no_launch_has_are_refused() {
        assert_eq!(Launch::unpack(Kernel::Fill, &[0, 0, 256, 0, 0, 0]), None);
        assert_eq!(
            Launch::unpack(Kernel::WritePattern, &[0, 0, 0, 3, 0, 0]),
            None
        );
        assert_eq!(Kernel::from_entry("saxpy"), None);
    }
}
