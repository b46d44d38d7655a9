//! The links that are shipped: measured or published times, each with where it comes from.

use serde::Deserialize;

use super::fit::{Point, fit};
use super::{Link, Residual, residuals};
use crate::input::{InputError, one_line};

const LINKS: &str = include_str!("profiles/links.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Links {
    link: Vec<LinkProfile>,
}

/// A link's times and what the model assumes beside them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkProfile {
    /// The name on the command line.
    pub name: String,
    /// Whose rows of `ds4 bench gate` measure this link; empty where none do.
    pub subject: String,
    /// What was timed, on what.
    pub device: String,
    /// `measured`, or `published` by others and not measured here.
    pub origin: String,
    /// When it was measured or read.
    pub date: String,
    /// Where the points come from.
    pub source: String,
    /// See [`Link::once_ps`]; in nanoseconds.
    pub once_ns: u64,
    /// Where that figure comes from.
    pub once_source: String,
    /// See [`Link::gap_permille`].
    pub gap_permille: u16,
    /// Where that figure comes from.
    pub gap_source: String,
    /// See [`Link::add_ps_per_mib`]; in nanoseconds.
    pub add_ns_per_mib: u64,
    /// Where that figure comes from.
    pub add_source: String,
    /// The most ranks that such a link joins, if there is a limit; larger counts are arithmetic.
    pub ranks_max: Option<u16>,
    /// The points that the model is fitted to.
    pub point: Vec<PointNs>,
}

/// A measured point in nanoseconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PointNs {
    /// Bytes of the vector.
    pub bytes: u64,
    /// The median time in nanoseconds.
    pub ns: u64,
}

impl LinkProfile {
    /// The points in picoseconds.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let points = self.point.iter().map(|point| Point {
            bytes: point.bytes,
            ps: point.ns.saturating_mul(1000),
        });
        points.collect()
    }

    /// The link fitted to the points.
    #[must_use]
    pub fn link(&self) -> Link {
        Link {
            ranges: fit(&self.points()),
            once_ps: self.once_ns.saturating_mul(1000),
            gap_permille: self.gap_permille,
            add_ps_per_mib: self.add_ns_per_mib.saturating_mul(1000),
        }
    }

    /// Every point against the model with and without it.
    #[must_use]
    pub fn residuals(&self) -> Vec<Residual> {
        residuals(&self.points())
    }

    /// This link with other points, measured elsewhere.
    #[must_use]
    pub fn with_points(&self, file: &str, device: String, mut point: Vec<PointNs>) -> Self {
        point.sort_unstable_by_key(|point| point.bytes);
        Self {
            name: file.to_owned(),
            device,
            origin: "measured".to_owned(),
            date: String::new(),
            source: file.to_owned(),
            point,
            ..self.clone()
        }
    }
}

/// The shipped links.
///
/// # Errors
/// An [`InputError`] if the shipped file is broken; a test reads it.
pub fn shipped() -> Result<Vec<LinkProfile>, InputError> {
    let links: Links = toml::from_str(LINKS).map_err(|error| {
        InputError::new(
            "links.toml",
            "",
            one_line(error.message()),
            "this is a fault of ds4; report it",
        )
    })?;
    Ok(links.link)
}
