//! Machines as TOML files: five are shipped, others are loaded by path, and one can be written
//! from what a real host reports.
//!
//! ```toml
//! machine = "2x24g"                # required
//! about = "Two cards."             # optional
//! reuse_addresses = false          # optional, see SimConfig
//!
//! [link]                           # optional: the figures of every direct or broken path
//! latency_ns = 1100
//! bytes_per_second = 396_900_000_000
//!
//! [[device]]                       # one for each device, in the order of their ids, at most 32
//! name = "Simulated card"          # required
//! capacity = "24GiB"               # required; a size or a number of bytes
//! page = "2MiB"                    # optional; without it the device cannot map pages
//! granularity = "2MiB"             # optional, 2 MiB
//! other_processes = "0"            # optional, what others hold from the start
//! peers = [1]                      # devices that this one reaches directly
//! broken_peers = []                # devices to which the path delivers wrong bytes
//!
//! [[device]]
//! name = "Simulated card"
//! capacity = "24GiB"
//! peers = [0]
//!
//! [[pair]]                         # optional: other figures for one ordered pair
//! from = 0
//! to = 1
//! latency_ns = 2000
//! bytes_per_second = 25_000_000_000
//! ```
//!
//! A path that is listed one way only is refused: list the other way in `peers` or
//! `broken_peers` too.

mod read;

use std::fmt::Write as _;
use std::path::Path;

use ds4_engine::device::{DeviceId, DeviceInfo, PeerAccess};

use crate::config::{Link, SimConfig, SimDevice};
use crate::input::{InputError, read_file};

const SHIPPED: [(&str, &str); 5] = [
    ("1x24g", include_str!("../topologies/1x24g.toml")),
    ("2xh200", include_str!("../topologies/2xh200.toml")),
    ("8xh200", include_str!("../topologies/8xh200.toml")),
    (
        "8x24g-mixed",
        include_str!("../topologies/8x24g-mixed.toml"),
    ),
    ("4x24g-bare", include_str!("../topologies/4x24g-bare.toml")),
];

/// A machine with its description, as a file holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// One sentence for people.
    pub about: String,
    /// The machine.
    pub config: SimConfig,
}

impl Topology {
    /// The names under which machines are shipped.
    pub fn shipped() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// Loads a shipped machine by name, or a file by path.
    ///
    /// A text with a path separator or ending in `.toml` is a path.
    ///
    /// # Errors
    /// An [`InputError`] when there is no such machine or file, or when it is not valid.
    pub fn load(name_or_path: &str) -> Result<Self, InputError> {
        if let Some(text) = shipped_text(name_or_path) {
            return Self::from_toml(text, name_or_path);
        }
        let is_path = name_or_path.contains(['/', '\\'])
            || Path::new(name_or_path)
                .extension()
                .is_some_and(|ending| ending == "toml");
        if !is_path {
            let names: Vec<&str> = Self::shipped().collect();
            return Err(InputError::new(
                name_or_path,
                "",
                "no such topology is shipped",
                format!(
                    "use one of {}, or the path of a .toml file",
                    names.join(", ")
                ),
            ));
        }
        match read_file(Path::new(name_or_path), "the topology") {
            Ok(bytes) => match std::str::from_utf8(&bytes) {
                Ok(text) => Self::from_toml(text, name_or_path),
                Err(error) => Err(InputError::new(
                    name_or_path,
                    "",
                    format!("the topology cannot be read ({error})"),
                    "check the path and that it is a text file",
                )),
            },
            // "2xh200.toml" means the shipped one, unless there is a file of that name.
            Err(error) => match name_or_path.strip_suffix(".toml").and_then(shipped_text) {
                Some(text) if !Path::new(name_or_path).exists() => {
                    Self::from_toml(text, name_or_path)
                }
                _ => Err(error),
            },
        }
    }

    /// Reads a machine from TOML; `file` is what errors call it.
    ///
    /// # Errors
    /// An [`InputError`] with the line of the first thing that is wrong.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, InputError> {
        read::topology(text, file)
    }

    /// Describes a host by what its backend reports; `access` answers for ordered pairs.
    #[must_use]
    pub fn from_devices(
        machine: &str,
        infos: &[DeviceInfo],
        access: impl Fn(DeviceId, DeviceId) -> PeerAccess,
    ) -> Self {
        let devices = infos
            .iter()
            .map(|info| SimDevice {
                name: info.name.clone(),
                page_bytes: info.page_bytes,
                granularity_bytes: info.page_bytes.unwrap_or(1 << 16),
                ..SimDevice::new(info.total_bytes)
            })
            .collect();
        let mut config = SimConfig::new(machine, devices);
        for from in (0..infos.len()).filter_map(DeviceId::new) {
            for to in (0..infos.len())
                .filter_map(DeviceId::new)
                .filter(|to| *to != from)
            {
                config.set_link(
                    from,
                    to,
                    Link {
                        access: access(from, to),
                        ..Link::nvlink()
                    },
                );
            }
        }
        Self {
            about: "Captured from a host; link figures are assumed.".to_owned(),
            config,
        }
    }

    /// Writes the machine in the form that [`Topology::from_toml`] reads.
    ///
    /// A path that exists one way only is written as broken the other way, since a file cannot
    /// say "one way".
    #[must_use]
    pub fn to_toml(&self) -> String {
        let config = &self.config;
        let ids: Vec<DeviceId> = (0..config.devices.len())
            .filter_map(DeviceId::new)
            .collect();
        let mut out = format!(
            "machine = {}\nabout = {}\n",
            quoted(&config.machine),
            quoted(&self.about)
        );
        if config.reuse_addresses {
            out.push_str("reuse_addresses = true\n");
        }
        for (device, id) in config.devices.iter().zip(&ids) {
            write_device(&mut out, device);
            let list = |wanted: PeerAccess| {
                let peers = ids.iter().filter(|to| *to != id);
                let matching = peers.filter(|to| written_access(config, *id, **to) == wanted);
                let numbers: Vec<String> = matching.map(|to| to.index().to_string()).collect();
                numbers.join(", ")
            };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "peers = [{}]", list(PeerAccess::Direct));
            let _ = writeln!(out, "broken_peers = [{}]", list(PeerAccess::Broken));
        }
        for from in &ids {
            for to in ids.iter().filter(|to| *to != from) {
                let Some(link) = config.link(*from, *to) else {
                    continue;
                };
                let listed = written_access(config, *from, *to) != PeerAccess::Absent;
                let usual = Link {
                    access: link.access,
                    ..Link::nvlink()
                };
                if listed && link != usual {
                    let _ = write!(
                        out,
                        "\n[[pair]]\nfrom = {}\nto = {}\nlatency_ns = {}\nbytes_per_second = {}\n",
                        from.index(),
                        to.index(),
                        link.latency_ns,
                        link.bytes_per_second
                    );
                }
            }
        }
        out
    }
}

fn shipped_text(name: &str) -> Option<&'static str> {
    SHIPPED
        .iter()
        .find(|(shipped, _)| *shipped == name)
        .map(|(_, text)| *text)
}

fn written_access(config: &SimConfig, from: DeviceId, to: DeviceId) -> PeerAccess {
    let access = |a, b| {
        config
            .link(a, b)
            .map_or(PeerAccess::Absent, |link| link.access)
    };
    match (access(from, to), access(to, from)) {
        (PeerAccess::Absent, PeerAccess::Direct | PeerAccess::Broken) => PeerAccess::Broken,
        (there, _) => there,
    }
}

fn write_device(out: &mut String, device: &SimDevice) {
    let _ = write!(
        out,
        "\n[[device]]\nname = {}\ncapacity = {}\n",
        quoted(&device.name),
        device.capacity_bytes
    );
    if let Some(page_bytes) = device.page_bytes {
        let _ = writeln!(out, "page = {page_bytes}");
    }
    let _ = writeln!(out, "granularity = {}", device.granularity_bytes);
    let _ = writeln!(out, "other_processes = {}", device.other_process_bytes);
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
