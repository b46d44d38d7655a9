//! The gates' comparison: pure functions of two sets of figures.

use std::collections::BTreeMap;
use std::fmt;

/// Named exact counts, `scenario/counter` to count.
pub type Figures = BTreeMap<String, u64>;

/// How much a figure may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Thousandths of the old figure.
    pub permille: u64,
    /// At least this much.
    pub least: u64,
}

impl Limit {
    /// Exact counts: not at all.
    pub const NONE: Self = Self {
        permille: 0,
        least: 0,
    };
    /// Instructions: 1 percent or 200.
    pub const INSTRUCTIONS: Self = Self {
        permille: 10,
        least: 200,
    };

    fn allows(self, old: u64, new: u64) -> bool {
        let share = u128::from(old) * u128::from(self.permille) / 1000;
        u128::from(new) <= u128::from(old) + share.max(u128::from(self.least))
    }
}

/// What became of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It grew beyond the limit.
    Grew,
    /// It is in the baseline and was not measured.
    Missing,
    /// It was measured and is not in the baseline.
    New,
    /// It changed within the limit, or shrank.
    Changed,
}

/// One figure that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The figure.
    pub name: String,
    /// In the baseline.
    pub old: Option<u64>,
    /// As measured.
    pub new: Option<u64>,
    /// What that means.
    pub verdict: Verdict,
}

impl Change {
    /// Whether the gate fails. A new figure fails too: it has no baseline yet.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.verdict != Verdict::Changed
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.verdict {
            Verdict::Grew => "GREW",
            Verdict::Missing => "MISSING",
            Verdict::New => "NEW",
            Verdict::Changed => "changed",
        };
        let show = |figure: Option<u64>| figure.map_or("-".to_owned(), |count| count.to_string());
        write!(
            f,
            "{word:<8} {} {} -> {}",
            self.name,
            show(self.old),
            show(self.new)
        )?;
        match (self.old, self.new) {
            (Some(old), Some(new)) if old > 0 => write!(f, " ({})", percent(old, new)),
            _ => Ok(()),
        }
    }
}

/// The change in hundredths of a percent, in integers so that every machine prints the same.
fn percent(old: u64, new: u64) -> String {
    let scaled = u128::from(old.abs_diff(new)) * 10_000 / u128::from(old.max(1));
    let sign = if new < old { '-' } else { '+' };
    format!("{sign}{}.{:02} %", scaled / 100, scaled % 100)
}

/// All figures that are not as in the baseline, failures first and then the largest growth.
#[must_use]
pub fn compare(old: &Figures, new: &Figures, limit: Limit) -> Vec<Change> {
    let names = old
        .keys()
        .chain(new.keys().filter(|name| !old.contains_key(*name)));
    let mut changes: Vec<Change> = names
        .filter_map(|name| {
            let (old, new) = (old.get(name).copied(), new.get(name).copied());
            let verdict = match (old, new) {
                (Some(old), Some(new)) if old == new => return None,
                (Some(old), Some(new)) if limit.allows(old, new) => Verdict::Changed,
                (Some(_), Some(_)) => Verdict::Grew,
                (Some(_), None) => Verdict::Missing,
                (None, _) => Verdict::New,
            };
            Some(Change {
                name: name.clone(),
                old,
                new,
                verdict,
            })
        })
        .collect();
    let growth = |change: &Change| {
        let (old, new) = (change.old.unwrap_or(0), change.new.unwrap_or(0));
        u128::from(new) * 1_000_000 / u128::from(old.max(1))
    };
    changes.sort_by(|a, b| a.verdict.cmp(&b.verdict).then(growth(b).cmp(&growth(a))));
    changes
}

/// The total that callgrind wrote at the end of its output file.
///
/// # Errors
/// There is no total, or it is zero: nothing was collected.
pub fn callgrind_total(text: &str) -> Result<u64, String> {
    let total = text
        .lines()
        .rev()
        .find_map(|line| {
            line.strip_prefix("totals:")
                .or_else(|| line.strip_prefix("summary:"))
        })
        .ok_or("callgrind wrote no total")?;
    match total
        .split_whitespace()
        .next()
        .and_then(|count| count.parse().ok())
    {
        Some(0) => Err("callgrind counted no instruction: the region was never entered".to_owned()),
        Some(count) => Ok(count),
        None => Err(format!("callgrind wrote '{}' as its total", total.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(list: &[(&str, u64)]) -> Figures {
        list.iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    #[test]
    fn equal_figures_are_no_change() {
        let same = figures(&[("a", 1), ("b", 0)]);
        assert!(compare(&same, &same, Limit::NONE).is_empty());
    }

    #[test]
    fn an_exact_count_may_shrink_but_not_grow() {
        let (old, new) = (
            figures(&[("a", 10), ("b", 10)]),
            figures(&[("a", 11), ("b", 9)]),
        );
        let changes = compare(&old, &new, Limit::NONE);
        assert_eq!(changes[0].to_string(), "GREW     a 10 -> 11 (+10.00 %)");
        assert!(changes[0].fails());
        assert_eq!(changes[1].to_string(), "changed  b 10 -> 9 (-10.00 %)");
        assert!(!changes[1].fails());
    }

    #[test]
    fn instructions_may_grow_by_a_percent_or_by_two_hundred() {
        for (old, new, fails) in [
            (1_000, 1_200, false),
            (1_000, 1_201, true),
            (1_000_000, 1_010_000, false),
            (1_000_000, 1_010_001, true),
            (u64::MAX, u64::MAX - 1, false),
        ] {
            let changes = compare(
                &figures(&[("a", old)]),
                &figures(&[("a", new)]),
                Limit::INSTRUCTIONS,
            );
            assert_eq!(changes[0].fails(), fails, "{old} -> {new}");
        }
    }

    #[test]
    fn a_figure_that_is_missing_or_has_no_baseline_fails() {
        let changes = compare(
            &figures(&[("a", 1)]),
            &figures(&[("b", 1)]),
            Limit::INSTRUCTIONS,
        );
        let verdicts: Vec<Verdict> = changes.iter().map(|change| change.verdict).collect();
        assert_eq!(verdicts, [Verdict::Missing, Verdict::New]);
        assert!(changes.iter().all(Change::fails));
    }

    #[test]
    fn the_largest_growth_comes_first() {
        let old = figures(&[("a", 100), ("b", 100), ("c", 100)]);
        let new = figures(&[("a", 110), ("b", 150), ("c", 90)]);
        let names: Vec<String> = compare(&old, &new, Limit::NONE)
            .into_iter()
            .map(|change| change.name)
            .collect();
        assert_eq!(names, ["b", "a", "c"]);
    }

    #[test]
    fn a_total_of_zero_or_none_is_an_error() {
        assert_eq!(callgrind_total("events: Ir\ntotals: 1234\n"), Ok(1234));
        assert!(
            callgrind_total("totals: 0")
                .unwrap_err()
                .contains("never entered")
        );
        assert!(callgrind_total("events: Ir").is_err());
        assert!(callgrind_total("totals: x").is_err());
    }
}
