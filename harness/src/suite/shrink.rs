//! Making a failing history small: operations from the back, then one by one, then faults, then
//! sizes.

use super::script::{Op, Script};

/// Runs that shrinking may cost.
const MOST_RUNS: u32 = 2_000;

/// The smallest history found for which `fails` still says yes.
pub(super) fn shrink(script: Script, fails: &mut dyn FnMut(&Script) -> bool) -> Script {
    let mut search = Search {
        best: script,
        runs: 0,
        fails,
    };
    loop {
        let before = search.best.clone();
        search.drop_from_the_back();
        search.drop_one_by_one();
        search.drop_faults();
        search.halve_sizes();
        if search.best == before || search.runs >= MOST_RUNS {
            return search.best;
        }
    }
}

struct Search<'a> {
    best: Script,
    runs: u32,
    fails: &'a mut dyn FnMut(&Script) -> bool,
}

impl Search<'_> {
    fn try_out(&mut self, candidate: Script) -> bool {
        if self.runs >= MOST_RUNS || candidate == self.best {
            return false;
        }
        self.runs += 1;
        let fails = (self.fails)(&candidate);
        if fails {
            self.best = candidate;
        }
        fails
    }

    fn drop_from_the_back(&mut self) {
        let mut step = self.best.ops.len() / 2;
        while step > 0 {
            let mut shorter = self.best.clone();
            shorter
                .ops
                .truncate(self.best.ops.len().saturating_sub(step));
            if !self.try_out(shorter) {
                step /= 2;
            }
        }
    }

    fn drop_one_by_one(&mut self) {
        let mut index = 0;
        while index < self.best.ops.len() {
            let mut shorter = self.best.clone();
            shorter.ops.remove(index);
            if !self.try_out(shorter) {
                index += 1;
            }
        }
    }

    fn drop_faults(&mut self) {
        let mut index = 0;
        while index < self.best.faults.len() {
            let mut fewer = self.best.clone();
            fewer.faults.remove(index);
            if !self.try_out(fewer) {
                index += 1;
            }
        }
    }

    fn halve_sizes(&mut self) {
        for index in 0..self.best.ops.len() {
            loop {
                let mut smaller = self.best.clone();
                let Some(Op::Alloc { bytes, .. }) = smaller.ops.get_mut(index) else {
                    break;
                };
                if *bytes < 2 {
                    break;
                }
                *bytes /= 2;
                if !self.try_out(smaller) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::draw;
    use super::*;

    #[test]
    fn what_does_not_matter_is_dropped_and_sizes_end_at_the_bound() {
        let is_large = |op: &Op| matches!(op, Op::Alloc { bytes, .. } if *bytes >= 1000);
        let mut fails = |script: &Script| script.ops.iter().any(is_large);
        let small = shrink(draw(1, 0, 2, true), &mut fails);
        assert_eq!((small.ops.len(), small.faults.len()), (1, 0));
        assert!(matches!(
            small.ops[0],
            Op::Alloc {
                bytes: 1000..2000,
                ..
            }
        ));
    }
}
