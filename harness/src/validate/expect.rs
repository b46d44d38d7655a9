//! What figures are held against: a file of the user, or what is shipped for a device's name.

use std::fmt;

use serde::Deserialize;

use super::Verdict;

/// The figures that an expectation can be about: name, unit.
const FIGURES: [(&str, &str); 10] = [
    ("host-to-device", "bytes per second"),
    ("device-to-host", "bytes per second"),
    ("host-bounce", "bytes per second"),
    ("device-copy", "bytes per second"),
    ("peer-copy", "bytes per second"),
    ("memory", "bytes"),
    ("nvlink", "active links"),
    ("pcie-generation", "generation"),
    ("pcie-width", "lanes"),
    ("devices", "devices"),
];

const SHIPPED: [(&str, &str); 1] = [(
    "nvidia-h200.toml",
    include_str!("profiles/nvidia-h200.toml"),
)];

/// Why a file of expectations was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    file: String,
    problem: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.problem)
    }
}

impl std::error::Error for ProfileError {}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a device and a list named expect")]
struct Raw {
    device: Option<String>,
    #[serde(default)]
    expect: Vec<RawExpectation>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table with figure, at_least and source"
)]
struct RawExpectation {
    figure: String,
    at_least: u64,
    #[serde(default)]
    otherwise: Otherwise,
    source: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Otherwise {
    #[default]
    Fail,
    Warn,
}

/// A least figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expectation {
    pub(super) at_least: u64,
    /// The verdict on less.
    pub(super) otherwise: Verdict,
    /// Who says so.
    pub(super) source: String,
}

#[derive(Clone, Debug)]
struct Profile {
    /// The device's name; every device if absent.
    device: Option<String>,
    figures: Vec<(String, Expectation)>,
}

impl Profile {
    fn read(text: &str, file: &str) -> Result<Self, ProfileError> {
        let refuse = |problem: String| ProfileError {
            file: file.to_owned(),
            problem,
        };
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                let before = text.get(..span.start).unwrap_or(text);
                before.matches('\n').count() + 1
            });
            let words: Vec<&str> = error.message().split_whitespace().collect();
            let problem = words.join(" ");
            refuse(format!(
                "line {line}: {problem}; `ds4 validate --help` shows the form"
            ))
        })?;
        if raw.expect.is_empty() {
            return Err(refuse("it expects nothing; add an [[expect]]".to_owned()));
        }
        let mut figures = Vec::new();
        for one in raw.expect {
            if !FIGURES.iter().any(|(name, _)| *name == one.figure) {
                let known: Vec<&str> = FIGURES.iter().map(|(name, _)| *name).collect();
                return Err(refuse(format!(
                    "'{}' is no figure; use {}",
                    one.figure.escape_debug(),
                    known.join(", ")
                )));
            }
            if one.source.trim().is_empty() {
                return Err(refuse(format!(
                    "{} has an empty source; say where the figure comes from",
                    one.figure
                )));
            }
            let expectation = Expectation {
                at_least: one.at_least,
                otherwise: match one.otherwise {
                    Otherwise::Fail => Verdict::Fail,
                    Otherwise::Warn => Verdict::Warn,
                },
                source: format!("{file}: {}", one.source),
            };
            figures.push((one.figure, expectation));
        }
        Ok(Self {
            device: raw.device,
            figures,
        })
    }

    fn of(&self, figure: &str, device: &str) -> Option<&Expectation> {
        let applies = self.device.as_ref().is_none_or(|name| name == device);
        let mut figures = self.figures.iter().filter(|_| applies);
        figures
            .find(|(name, _)| name == figure)
            .map(|(_, expectation)| expectation)
    }
}

/// All expectations, those of the user first.
#[derive(Clone, Debug)]
pub struct Expectations {
    profiles: Vec<Profile>,
}

impl Expectations {
    /// What is shipped.
    ///
    /// # Errors
    /// [`ProfileError`] if a shipped profile is wrong, which a test rules out.
    pub fn shipped() -> Result<Self, ProfileError> {
        let profiles = SHIPPED.iter().map(|(file, text)| Profile::read(text, file));
        Ok(Self {
            profiles: profiles.collect::<Result<_, _>>()?,
        })
    }

    /// Puts a user's file before what there is; `file` is what messages call it.
    ///
    /// # Errors
    /// [`ProfileError`] with what is wrong.
    pub fn and_file(mut self, text: &str, file: &str) -> Result<Self, ProfileError> {
        self.profiles.insert(0, Profile::read(text, file)?);
        Ok(self)
    }

    pub(super) fn of(&self, figure: &str, device: &str) -> Option<&Expectation> {
        debug_assert!(FIGURES.iter().any(|(name, _)| *name == figure));
        let mut profiles = self.profiles.iter();
        profiles.find_map(|profile| profile.of(figure, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_file_comes_first_and_the_shipped_profile_knows_its_device_only() {
        let shipped = Expectations::shipped().unwrap();
        let peer = shipped.of("peer-copy", "NVIDIA H200").unwrap();
        assert_eq!(peer.at_least, 350_000_000_000);
        assert_eq!(shipped.of("peer-copy", "NVIDIA H20"), None);
        let text = "[[expect]]\nfigure = \"peer-copy\"\nat_least = 5\notherwise = \"warn\"\nsource = \"me\"";
        let own = shipped.and_file(text, "own.toml").unwrap();
        let peer = own.of("peer-copy", "NVIDIA H200").unwrap();
        assert_eq!((peer.at_least, peer.otherwise), (5, Verdict::Warn));
        assert_eq!(peer.source, "own.toml: me");
        assert!(own.of("device-copy", "NVIDIA H200").is_some());
    }

    #[test]
    fn every_refusal_names_the_file_and_what_is_wrong() {
        let texts = [
            "",
            "[[expect]]\nfigure = \"peer-copy\"\nat_least = -1\nsource = \"x\"",
            "[[expect]]\nfigure = \"speed\"\nat_least = 1\nsource = \"x\"",
            "[[expect]]\nfigure = \"nvlink\"\nat_least = 1\nsource = \" \"",
            "[[expect]]\nfigure = \"nvlink\"\nat_least = 1",
            "\n\nwidth = 3",
        ];
        let said = texts.map(|text| {
            let shipped = Expectations::shipped().unwrap();
            shipped.and_file(text, "e.toml").unwrap_err().to_string()
        });
        insta::assert_snapshot!(said.join("\n"), @r"
        e.toml: it expects nothing; add an [[expect]]
        e.toml: line 3: invalid value: integer `-1`, expected u64; `ds4 validate --help` shows the form
        e.toml: 'speed' is no figure; use host-to-device, device-to-host, host-bounce, device-copy, peer-copy, memory, nvlink, pcie-generation, pcie-width, devices
        e.toml: nvlink has an empty source; say where the figure comes from
        e.toml: line 1: missing field `source`; `ds4 validate --help` shows the form
        e.toml: line 3: unknown field `width`, expected `device` or `expect`; `ds4 validate --help` shows the form
        ");
    }
}
