//! What a gate costs on more ranks than there are to measure: a model, and a run that checks it.
//!
//! Two ranks are measured at several sizes; from those times come lines of base and slope
//! ([`fit`]). A message then occupies its sender's port for a gap and its bytes, takes a latency, and
//! occupies the receiver's port for its bytes, as in LogGP; the receiver adds it. From that follow a
//! closed form for each algorithm ([`closed_form_ps`]) and the same all-reduce message by message on
//! virtual time ([`simulate`]), which also looks at every rank's sum. The two agree to the picosecond.
//!
//! All times are whole picoseconds; no clock and no float takes part.
//!
//! **Not modelled**: switches that are shared by more messages than they can pass, noise, ranks
//! that come late, cores shared by ranks, and several ports of one rank.

mod cost;
mod fit;
mod profile;
mod run;
#[cfg(test)]
mod tests;

pub use cost::closed_form_ps;
pub use fit::{Line, MAX_POINTS, Point, Range, Residual, fit, line_at, residuals};
pub use profile::{LinkProfile, PointNs, shipped};
pub use run::{Run, WrongSum, simulate};

/// The most ranks of the model.
pub const MAX_RANKS: u16 = 1024;
/// The largest vector of the model.
pub const MAX_VECTOR_BYTES: u64 = 1 << 30;

/// How the sum comes to all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every rank sends its vector to every other, and each adds all in the order of ranks.
    OneShot,
    /// The vector in N pieces: reduce-scatter round a ring, then all-gather round it.
    Ring,
    /// A binomial tree: reduced to rank 0, then broadcast.
    Tree,
}

impl Algorithm {
    /// All of them, in the order in which equal costs are decided.
    pub const ALL: [Self; 3] = [Self::OneShot, Self::Ring, Self::Tree];

    /// The name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OneShot => "one-shot",
            Self::Ring => "ring",
            Self::Tree => "tree",
        }
    }

    /// The bytes of each message: a ring's pieces are equal, in whole floats.
    #[must_use]
    pub fn message_bytes(self, ranks: u16, bytes: u64) -> u64 {
        match self {
            Self::OneShot | Self::Tree => bytes,
            Self::Ring => bytes.div_ceil(4).div_ceil(u64::from(ranks.max(1))) * 4,
        }
    }

    /// How many messages an all-reduce takes.
    #[must_use]
    pub fn messages(self, ranks: u16) -> u64 {
        let (ranks, others) = (u64::from(ranks), u64::from(ranks.saturating_sub(1)));
        match self {
            Self::OneShot => ranks * others,
            Self::Ring => 2 * ranks * others,
            Self::Tree => 2 * others,
        }
    }
}

/// A link as the model knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Times of one exchange and add between two ranks.
    pub ranges: Vec<Range>,
    /// What a gate costs once however many messages it has, such as a graph's node, in picoseconds;
    /// part of every measured time.
    pub once_ps: u64,
    /// The part of a message's base cost during which its sender can send nothing else, in
    /// thousandths.
    pub gap_permille: u16,
    /// Adding a MiB, in picoseconds; part of every measured time.
    pub add_ps_per_mib: u64,
}

/// The parts of one message's time, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The sender's port is busy beyond the bytes.
    gap_ps: u64,
    /// The port of either side is busy with the bytes.
    wire_ps: u64,
    /// On the way, occupying nobody.
    latency_ps: u64,
    /// The receiver adds.
    add_ps: u64,
}

impl Step {
    fn occupied_ps(self) -> u64 {
        self.gap_ps.saturating_add(self.wire_ps)
    }

    /// One message with nothing in its way.
    fn alone_ps(self) -> u64 {
        self.occupied_ps().saturating_add(self.latency_ps)
    }
}

impl Link {
    /// The parts of a message of `bytes`, which add up to the fitted time of two ranks.
    fn step(&self, bytes: u64) -> Step {
        let line = line_at(&self.ranges, bytes);
        let base_ps = line.base_ps.saturating_sub(self.once_ps);
        let whole_ps = fit::part_ps(bytes, line.ps_per_mib);
        // A packet's slope can be all there is to a fast addition.
        let add_ps = fit::part_ps(bytes, self.add_ps_per_mib).min(whole_ps);
        let permille = u64::from(self.gap_permille.min(1000));
        let gap_ps = base_ps / 1000 * permille + base_ps % 1000 * permille / 1000;
        Step {
            gap_ps,
            wire_ps: whole_ps - add_ps,
            latency_ps: base_ps - gap_ps,
            add_ps,
        }
    }

    /// The cheapest of `algorithms`; of equal ones the first.
    #[must_use]
    pub fn best(&self, algorithms: &[Algorithm], ranks: u16, bytes: u64) -> Option<Algorithm> {
        let cost = |algorithm: &&Algorithm| closed_form_ps(self, **algorithm, ranks, bytes);
        algorithms.iter().min_by_key(cost).copied()
    }

    /// Where the cheapest algorithm changes: the least power of two of bytes, from 16 up, from which
    /// each is the cheapest.
    #[must_use]
    pub fn crossovers(&self, algorithms: &[Algorithm], ranks: u16) -> Vec<(u64, Algorithm)> {
        let mut found: Vec<(u64, Algorithm)> = Vec::new();
        for bytes in (4..=30).map(|power| 1_u64 << power) {
            let Some(best) = self.best(algorithms, ranks, bytes) else {
                continue;
            };
            if found.last().is_none_or(|(_, known)| *known != best) {
                found.push((bytes, best));
            }
        }
        found
    }
}
