//! From measured points to lines of base and slope, each for a range of sizes.
//!
//! A protocol change (packets, bulk, copy engine) shows as another line, so the sizes are cut into
//! at most three ranges: as few as keep every point within [`GOOD_PPM`]. Within a range the line is
//! the one with the least largest relative error among those through two points, shifted so that
//! the errors above and below are equal. Sizes between two ranges lie on the line that joins them, as
//! nobody measured where one protocol gives way to the next. All of it is whole numbers.

/// A fit with no more error than this needs no further range, in millionths.
const GOOD_PPM: u64 = 100_000;
/// The most ranges of sizes.
const MAX_RANGES: usize = 3;
/// The most points; choosing ranges looks at all pairs of cuts.
pub const MAX_POINTS: usize = 24;

const MILLION: u128 = 1_000_000;

/// One measured time of a message exchanged and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Bytes of the vector.
    pub bytes: u64,
    /// The median time in picoseconds.
    pub ps: u64,
}

/// A time that grows with the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// What every message costs, in picoseconds.
    pub base_ps: u64,
    /// What a MiB costs on top, in picoseconds.
    pub ps_per_mib: u64,
}

impl Line {
    /// The time of a message of `bytes`, in picoseconds.
    #[must_use]
    pub fn ps(self, bytes: u64) -> u64 {
        self.base_ps.saturating_add(part_ps(bytes, self.ps_per_mib))
    }
}

/// `bytes` at `ps_per_mib`, in picoseconds, rounded down.
#[must_use]
pub(super) fn part_ps(bytes: u64, ps_per_mib: u64) -> u64 {
    let ps = (u128::from(bytes) * u128::from(ps_per_mib)) >> 20;
    u64::try_from(ps).unwrap_or(u64::MAX)
}

/// A line and the largest message that it was fitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The largest message; the last range has no end.
    pub last_bytes: u64,
    /// What messages of this range cost.
    pub line: Line,
}

/// How far the model is from one measured point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residual {
    /// The measured point.
    pub point: Point,
    /// What the model fitted to all points says, in picoseconds.
    pub fitted_ps: u64,
    /// What the model says that was fitted without this point, in picoseconds; `None` where fewer
    /// than two other points are left.
    pub held_out_ps: Option<u64>,
}

impl Residual {
    /// The error of the model fitted to all points, in millionths of the measured time.
    #[must_use]
    pub fn fitted_ppm(&self) -> i64 {
        signed_ppm(self.fitted_ps, self.point.ps)
    }

    /// The error of the model fitted without this point, in millionths of the measured time.
    #[must_use]
    pub fn held_out_ppm(&self) -> Option<i64> {
        let held_out = self.held_out_ps?;
        Some(signed_ppm(held_out, self.point.ps))
    }
}

/// The time of a message of `bytes` by the range that holds it, in picoseconds.
#[must_use]
pub fn line_at(ranges: &[Range], bytes: u64) -> Line {
    let holding = ranges.iter().find(|range| bytes <= range.last_bytes);
    let range = holding.or(ranges.last());
    range.map_or(Line::default(), |range| range.line)
}

/// The ranges that fit `points`, which are sorted by bytes and no two of one size.
#[must_use]
pub fn fit(points: &[Point]) -> Vec<Range> {
    let mut best: Option<(u64, Vec<Range>)> = None;
    for ranges in 1..=MAX_RANGES {
        let found = cut(points, ranges);
        let better = match (&best, &found) {
            (Some((known, _)), Some((error, _))) => error < known,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if better {
            best = found;
        }
        if best.as_ref().is_some_and(|(error, _)| *error <= GOOD_PPM) {
            break;
        }
    }
    best.map_or_else(Vec::new, |(_, ranges)| joined(points, &ranges))
}

/// `ranges` with a line between each two, from the last size of one to the first of the next.
fn joined(points: &[Point], ranges: &[Range]) -> Vec<Range> {
    let mut all: Vec<Range> = Vec::new();
    for range in ranges {
        let before = all.last().copied();
        let first = points
            .iter()
            .find(|point| before.is_none_or(|b| point.bytes > b.last_bytes));
        let fitted = |bytes: u64, line: Line| Point {
            bytes,
            ps: line.ps(bytes),
        };
        if let (Some(before), Some(first)) = (before, first) {
            let from = fitted(before.last_bytes, before.line);
            let between = through(from, fitted(first.bytes, range.line));
            all.extend(between.map(|line| Range {
                last_bytes: first.bytes - 1,
                line,
            }));
        }
        all.push(*range);
    }
    all
}

/// Every point against the model with and without it.
#[must_use]
pub fn residuals(points: &[Point]) -> Vec<Residual> {
    let all = fit(points);
    let each = points.iter().map(|point| {
        let others: Vec<Point> = points.iter().filter(|p| *p != point).copied().collect();
        let held_out = (others.len() > 1).then(|| {
            let ranges = fit(&others);
            line_at(&ranges, point.bytes).ps(point.bytes)
        });
        Residual {
            point: *point,
            fitted_ps: line_at(&all, point.bytes).ps(point.bytes),
            held_out_ps: held_out,
        }
    });
    each.collect()
}

/// The best cut into exactly `ranges`, of two points or more each.
fn cut(points: &[Point], ranges: usize) -> Option<(u64, Vec<Range>)> {
    if ranges == 1 {
        let last_bytes = points.last()?.bytes;
        let (error, line) = fit_line(points);
        return Some((error, vec![Range { last_bytes, line }]));
    }
    let mut best: Option<(u64, Vec<Range>)> = None;
    for at in 2..points.len().saturating_sub(1) {
        let (low, high) = points.split_at(at);
        let Some((error_low, low)) = cut(low, 1) else {
            continue;
        };
        let Some((error_high, high)) = cut(high, ranges - 1) else {
            continue;
        };
        let error = error_low.max(error_high);
        if best.as_ref().is_none_or(|(known, _)| error < *known) {
            best = Some((error, low.into_iter().chain(high).collect()));
        }
    }
    best
}

/// The line through two of the points, or flat through one, whose largest error is least.
fn fit_line(points: &[Point]) -> (u64, Line) {
    let mut best: Option<(u64, Line)> = None;
    for (place, first) in points.iter().enumerate() {
        let flat = Line {
            base_ps: first.ps,
            ps_per_mib: 0,
        };
        let sloped = points.iter().skip(place + 1);
        let lines = sloped.filter_map(|second| through(*first, *second));
        for line in std::iter::once(flat).chain(lines) {
            let balanced = balance(line, points);
            let error = worst_ppm(balanced, points);
            if best.is_none_or(|(known, _)| error < known) {
                best = Some((error, balanced));
            }
        }
    }
    best.unwrap_or_default()
}

fn through(first: Point, second: Point) -> Option<Line> {
    let rise = second.ps.checked_sub(first.ps)?;
    let run = second.bytes.checked_sub(first.bytes)?;
    let slope = (u128::from(rise) << 20).checked_div(u128::from(run))?;
    let ps_per_mib = u64::try_from(slope).ok()?;
    let Some(base_ps) = first.ps.checked_sub(part_ps(first.bytes, ps_per_mib)) else {
        // No message costs less than nothing: the line from there through the second point.
        let slope = (u128::from(second.ps) << 20).checked_div(u128::from(second.bytes))?;
        return Some(Line {
            base_ps: 0,
            ps_per_mib: u64::try_from(slope).ok()?,
        });
    };
    Some(Line {
        base_ps,
        ps_per_mib,
    })
}

/// `line` scaled so that it errs as much above as below.
fn balance(line: Line, points: &[Point]) -> Line {
    let ratios = || points.iter().map(|p| ratio_ppm(line.ps(p.bytes), p.ps));
    let sum = ratios().min().unwrap_or(0) + ratios().max().unwrap_or(0);
    let scaled = |part: u64| {
        let scaled = (u128::from(part) * 2 * MILLION).checked_div(sum);
        u64::try_from(scaled.unwrap_or(0)).unwrap_or(u64::MAX)
    };
    Line {
        base_ps: scaled(line.base_ps),
        ps_per_mib: scaled(line.ps_per_mib),
    }
}

fn worst_ppm(line: Line, points: &[Point]) -> u64 {
    let errors = points
        .iter()
        .map(|point| signed_ppm(line.ps(point.bytes), point.ps).unsigned_abs());
    errors.max().unwrap_or(0)
}

fn ratio_ppm(of: u64, to: u64) -> u128 {
    u128::from(of) * MILLION / u128::from(to.max(1))
}

fn signed_ppm(of: u64, to: u64) -> i64 {
    let ratio = i64::try_from(ratio_ppm(of, to)).unwrap_or(i64::MAX);
    ratio.saturating_sub(1_000_000)
}
