//! How often strangers may fail to prove themselves before a listener stops hearing them.
//!
//! After a few failures from one source each further attempt from it must wait twice as long as
//! the last, up to a limit. The table is bounded: when it is full, the source that failed longest
//! ago is forgotten.

use super::time::Time;

/// Failures that cost nothing: a mistyped key, a health check.
const FREE_FAILURES: u32 = 4;
/// The first pause.
const FIRST_PAUSE_NS: u64 = 250_000_000;
/// The longest pause.
const LONGEST_PAUSE_NS: u64 = 30_000_000_000;
/// The most sources that are remembered.
const SOURCES_MAX: usize = 256;

/// Who connects: an address without its port, as a number.
pub type Source = u128;

/// What is remembered of the sources that failed.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    sources: Vec<Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    source: Source,
    count: u32,
    last: Time,
    until: Time,
}

impl Admission {
    /// Whether a connection from a source may begin its handshake.
    #[must_use]
    pub fn allows(&self, now: Time, source: Source) -> bool {
        self.sources
            .iter()
            .find(|failures| failures.source == source)
            .is_none_or(|failures| now >= failures.until)
    }

    /// A handshake from a source failed or ran out of time.
    pub fn failed(&mut self, now: Time, source: Source) {
        let known = self.sources.iter().position(|it| it.source == source);
        let mut failures = match known {
            Some(index) => self.sources.swap_remove(index),
            None => Failures {
                source,
                count: 0,
                last: now,
                until: now,
            },
        };
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let beyond = failures.count.saturating_sub(FREE_FAILURES);
        if let Some(doublings) = beyond.checked_sub(1) {
            let pause = FIRST_PAUSE_NS
                .saturating_mul(1_u64.checked_shl(doublings).unwrap_or(u64::MAX))
                .min(LONGEST_PAUSE_NS);
            failures.until = now.after(pause);
        }
        if self.sources.len() >= SOURCES_MAX {
            let oldest = self
                .sources
                .iter()
                .enumerate()
                .min_by_key(|(_, it)| it.last);
            if let Some((index, _)) = oldest {
                self.sources.swap_remove(index);
            }
        }
        self.sources.push(failures);
    }

    /// A source proved itself: what it did before is forgotten.
    pub fn succeeded(&mut self, source: Source) {
        self.sources.retain(|failures| failures.source != source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end_with_a_proof() {
        let mut admission = Admission::default();
        let mut now = Time::ZERO;
        for _ in 0..FREE_FAILURES {
            assert!(admission.allows(now, 1));
            admission.failed(now, 1);
        }
        for pause in [FIRST_PAUSE_NS, FIRST_PAUSE_NS * 2, FIRST_PAUSE_NS * 4] {
            assert!(admission.allows(now, 1));
            admission.failed(now, 1);
            assert!(!admission.allows(now.after(pause - 1), 1));
            assert!(admission.allows(now, 2), "others are not held up");
            now = now.after(pause);
        }
        for _ in 0..100 {
            admission.failed(now, 1);
        }
        assert!(admission.allows(now.after(LONGEST_PAUSE_NS), 1));
        admission.succeeded(1);
        assert!(admission.allows(now, 1));
    }

    #[test]
    fn many_sources_take_bounded_room() {
        let mut admission = Admission::default();
        for source in 0..10_000_u32 {
            admission.failed(Time(u64::from(source)), u128::from(source));
        }
        assert_eq!(admission.sources.len(), SOURCES_MAX);
    }
}
