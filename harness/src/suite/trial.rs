//! What a check is given: the machine, the seed, and the tally of what it did.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::bytes::{MIB, format_bytes};
use ds4_engine::device::{DeviceId, DeviceInfo, DeviceMask};
use ds4_engine::hash::StateHash;

use super::script::Script;
use super::world::{Setup, World, usual_budget};
use super::{CheckOptions, Suite};
use crate::target::Target;

/// The largest pages with which the smallest budget can still be cut up.
const MOST_PAGE_BYTES: u64 = 8 * MIB;
/// The largest pieces of the driver that still fit in number beside a budget.
const MOST_GRANULARITY_BYTES: u64 = 4 * MIB;

/// Why a check did not pass.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// What does not hold.
    Broken(String),
    /// What does not hold, with the operations that show it.
    Shown(String, Box<Script>),
    /// Why it cannot be shown here.
    Skip(String),
    /// Why the check could not run.
    Error(String),
    /// The user asked to stop.
    Stopped,
}

impl Failure {
    pub(super) fn error(why: impl std::fmt::Display) -> Self {
        Self::Error(why.to_string())
    }
}

/// What a check comes to.
pub(super) type Held = Result<(), Failure>;

/// Ends a check unless a condition holds.
macro_rules! hold {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::suite::trial::Failure::Broken(format!($($message)+)));
        }
    };
}
pub(super) use hold;

/// What was done and met.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) allocations: u64,
    pub(super) refusals: u64,
    pub(super) frees: u64,
    pub(super) copies: u64,
    pub(super) rejected: u64,
    pub(super) faults: u64,
    pub(super) launches: u64,
    pub(super) gates: u64,
    pub(super) worlds: u64,
    pub(super) sometimes: BTreeMap<&'static str, u64>,
    pub(super) hash: StateHash,
}

impl Tally {
    /// Notes that a situation was met.
    pub(super) fn met(&mut self, situation: &'static str) {
        *self.sometimes.entry(situation).or_default() += 1;
    }

    /// Those of `situations` that were never met.
    pub(super) fn missed<'a>(&self, situations: &[&'a str]) -> Vec<&'a str> {
        let met = |situation: &&str| self.sometimes.contains_key(situation);
        situations.iter().copied().filter(|it| !met(it)).collect()
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.allocations += other.allocations;
        self.refusals += other.refusals;
        self.frees += other.frees;
        self.copies += other.copies;
        self.rejected += other.rejected;
        self.faults += other.faults;
        self.launches += other.launches;
        self.gates += other.gates;
        self.worlds += other.worlds;
        for (situation, hits) in &other.sometimes {
            *self.sometimes.entry(situation).or_default() += hits;
        }
        self.hash.word(other.hash.finish());
    }

    /// Operations in all; none of them means that nothing was shown.
    pub(super) fn work(&self) -> u64 {
        self.allocations + self.refusals + self.rejected + self.copies + self.launches + self.gates
    }

    /// What was done, for people.
    pub(super) fn sentence(&self) -> String {
        let counts = [
            (self.allocations, "allocation", "allocations"),
            (self.refusals, "refusal", "refusals"),
            (self.frees, "free", "frees"),
            (self.copies, "copy", "copies"),
            (self.rejected, "bad call rejected", "bad calls rejected"),
            (self.faults, "fault fired", "faults fired"),
            (self.launches, "kernel launched", "kernels launched"),
            (self.gates, "gate passed", "gates passed"),
            (self.worlds, "history", "histories"),
        ];
        let parts: Vec<String> = counts
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, one, many)| {
                format!("{} {}", grouped(count), if count == 1 { one } else { many })
            })
            .collect();
        if parts.is_empty() {
            "nothing".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// One check at work.
pub(super) struct Trial<'a> {
    pub(super) target: &'a Target,
    pub(super) seed: u64,
    pub(super) cases: u32,
    pub(super) tally: Tally,
    pub(super) stop: &'a AtomicBool,
}

impl<'a> Trial<'a> {
    pub(super) fn new(target: &'a Target, options: &CheckOptions, stop: &'a AtomicBool) -> Self {
        Self {
            target,
            seed: options.seed,
            cases: options.cases,
            tally: Tally::default(),
            stop,
        }
    }

    /// How many devices the machine has.
    pub(super) fn devices(&self) -> usize {
        self.target.backend().devices().len()
    }

    /// Ends the check when the user asked for it.
    pub(super) fn go_on(&self) -> Held {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        Ok(())
    }

    /// A world on fresh devices.
    pub(super) fn world(&self, setup: Setup) -> Result<World, Failure> {
        self.go_on()?;
        let target = self.target.instrumented().map_err(Failure::error)?;
        World::open(target, setup)
    }

    /// Closes a world and takes over what it did.
    pub(super) fn close(&mut self, world: World) -> Held {
        let tally = world.close()?;
        self.tally.add(&tally);
        Ok(())
    }
}

/// One check: its name says what holds.
pub(super) struct Check {
    pub(super) suite: Suite,
    pub(super) name: &'static str,
    pub(super) needs: Needs,
    pub(super) body: fn(&mut Trial<'_>) -> Held,
}

/// What a check cannot do without.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// What only a simulated machine has: virtual time, and the order of its stream work.
    pub(super) sim: bool,
    /// So many devices.
    pub(super) devices: usize,
    /// What the machine's devices have to offer.
    pub(super) room: Room,
}

/// What a check needs of each device of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Nothing: it makes machines of its own.
    Own,
    /// The usual budget, in pages that are not too large for it.
    Budget,
    /// As much again for others, taken from the driver in pieces that are not too large.
    Spare,
}

impl Needs {
    pub(super) const NOTHING: Self = Self {
        sim: false,
        devices: 1,
        room: Room::Budget,
    };
    pub(super) const TWO: Self = Self {
        devices: 2,
        ..Self::NOTHING
    };
    pub(super) const SIM: Self = Self {
        sim: true,
        ..Self::NOTHING
    };
    pub(super) const OWN: Self = Self {
        room: Room::Own,
        ..Self::NOTHING
    };

    /// As [`Needs::OWN`], where the machines that it makes must be simulated ones.
    pub(super) const SIM_OWN: Self = Self {
        sim: true,
        ..Self::OWN
    };

    pub(super) const fn spare(self) -> Self {
        Self {
            room: Room::Spare,
            ..self
        }
    }

    /// What of it a machine lacks, as a sentence.
    pub(super) fn lack(&self, target: &Target) -> Option<String> {
        if self.sim && target.sim().is_none() {
            let why = "needs the virtual time of a simulated machine; add --backend sim";
            return Some(why.to_owned());
        }
        let infos = target.backend().devices();
        if infos.len() < self.devices {
            return Some(format!(
                "needs {} devices, the machine has {}",
                self.devices,
                infos.len()
            ));
        }
        let ids = DeviceMask::first(infos.len());
        ids.iter()
            .zip(infos)
            .find_map(|(id, info)| self.lack_of_device(target, id, info))
    }

    fn lack_of_device(&self, target: &Target, id: DeviceId, info: &DeviceInfo) -> Option<String> {
        if self.room == Room::Own {
            return None;
        }
        if let Some(page) = info.page_bytes.filter(|page| *page > MOST_PAGE_BYTES) {
            return Some(format!(
                "needs pages of at most {}, {id} has pages of {}",
                format_bytes(MOST_PAGE_BYTES),
                format_bytes(page)
            ));
        }
        let spare = u64::from(self.room == Room::Spare);
        let wanted = usual_budget(id) * (1 + spare);
        // A device that does not answer is the check's to report.
        let free = target.backend().memory_info(id).ok()?.free_bytes;
        if free < wanted {
            return Some(format!(
                "needs {} free, {id} has {}",
                format_bytes(wanted),
                format_bytes(free)
            ));
        }
        // Slabs are whole pieces, and so is what others take.
        let in_pieces = self.room == Room::Spare || info.page_bytes.is_none();
        let granularity = info.granularity_bytes;
        (in_pieces && granularity > MOST_GRANULARITY_BYTES).then(|| {
            format!(
                "needs a driver that gives pieces of {}, that of {id} gives {}",
                format_bytes(MOST_GRANULARITY_BYTES),
                format_bytes(granularity)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_read_as_a_sentence() {
        let tally = Tally {
            allocations: 1_204,
            refusals: 3,
            frees: 1,
            ..Tally::default()
        };
        assert_eq!(tally.sentence(), "1,204 allocations, 3 refusals, 1 free");
        assert_eq!(Tally::default().sentence(), "nothing");
    }
}
