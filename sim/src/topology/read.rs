//! From the text of a topology to a machine, with the line of what is wrong.

use ds4_engine::device::{DeviceId, MAX_DEVICES, PeerAccess};
use serde::Deserialize;
use toml::Spanned;

use super::Topology;
use crate::config::{Link, Problem, SimConfig, SimDevice, bad_name};
use crate::input::{InputError, in_words, line_and_column, one_line};
use crate::size::Size;

const FORM: &str = "see the topologies that are shipped for the form";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a machine with devices")]
struct RawTopology {
    machine: Spanned<String>,
    #[serde(default)]
    about: String,
    #[serde(default)]
    reuse_addresses: bool,
    link: Option<Spanned<RawLink>>,
    #[serde(default)]
    device: Vec<Spanned<RawDevice>>,
    #[serde(default)]
    pair: Vec<Spanned<RawPair>>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table with latency_ns and bytes_per_second"
)]
struct RawLink {
    latency_ns: u64,
    bytes_per_second: u64,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table with the name and capacity of a device"
)]
struct RawDevice {
    name: Spanned<String>,
    capacity: Spanned<Size>,
    page: Option<Spanned<Size>>,
    granularity: Option<Spanned<Size>>,
    other_processes: Option<Spanned<Size>>,
    #[serde(default)]
    peers: Vec<Spanned<usize>>,
    #[serde(default)]
    broken_peers: Vec<Spanned<usize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with from and to")]
struct RawPair {
    from: usize,
    to: usize,
    latency_ns: u64,
    bytes_per_second: u64,
}

pub(super) fn topology(text: &str, file: &str) -> Result<Topology, InputError> {
    let raw: RawTopology = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or_else(String::new, |span| {
            let (line, column) = line_and_column(text, span.start);
            format!("{line}:{column}")
        });
        InputError::new(file, place, in_words(&one_line(error.message())), FORM)
    })?;
    Reader { text, file }.topology(&raw)
}

/// Turns what was written into a machine, with the lines of what is wrong.
struct Reader<'a> {
    text: &'a str,
    file: &'a str,
}

impl Reader<'_> {
    fn error<T>(
        &self,
        at: &Spanned<T>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> InputError {
        let (line, _) = line_and_column(self.text, at.span().start);
        InputError::new(self.file, line.to_string(), problem, remedy)
    }

    fn topology(&self, raw: &RawTopology) -> Result<Topology, InputError> {
        let machine = raw.machine.get_ref();
        if let Some(problem) = bad_name(machine) {
            return Err(self.error(
                &raw.machine,
                format!("the machine's name {problem}"),
                "write for example machine = \"2xh200\"",
            ));
        }
        if raw.device.is_empty() {
            return Err(InputError::new(
                self.file,
                "",
                "there is no device",
                "add a [[device]] with a name and a capacity",
            ));
        }
        if let Some(extra) = raw.device.get(MAX_DEVICES) {
            return Err(self.error(
                extra,
                format!("there are {} devices", raw.device.len()),
                format!("keep at most {MAX_DEVICES}"),
            ));
        }
        let devices = raw
            .device
            .iter()
            .map(|device| self.device(device))
            .collect::<Result<_, _>>()?;
        let mut config = SimConfig::new(machine, devices);
        config.reuse_addresses = raw.reuse_addresses;
        self.links(raw, &mut config)?;
        config.validate().map_err(|error| InputError {
            file: self.file.to_owned(),
            ..error
        })?;
        Ok(Topology {
            about: raw.about.clone(),
            config,
        })
    }

    fn device(&self, raw: &Spanned<RawDevice>) -> Result<SimDevice, InputError> {
        let fields = raw.get_ref();
        let bytes = |size: &Option<Spanned<Size>>| size.as_ref().map(|size| size.get_ref().0);
        let default = SimDevice::new(fields.capacity.get_ref().0);
        let device = SimDevice {
            name: fields.name.get_ref().clone(),
            page_bytes: bytes(&fields.page),
            granularity_bytes: bytes(&fields.granularity).unwrap_or(default.granularity_bytes),
            other_process_bytes: bytes(&fields.other_processes).unwrap_or(0),
            ..default
        };
        let Some(Problem {
            field,
            problem,
            remedy,
        }) = device.problem()
        else {
            return Ok(device);
        };
        let written = match field {
            "page" => fields.page.as_ref(),
            "granularity" => fields.granularity.as_ref(),
            "other_processes" => fields.other_processes.as_ref(),
            "name" => return Err(self.error(&fields.name, problem, remedy)),
            _ => None,
        };
        Err(self.error(written.unwrap_or(&fields.capacity), problem, remedy))
    }

    fn links(&self, raw: &RawTopology, config: &mut SimConfig) -> Result<(), InputError> {
        let usual = raw.link.as_ref().map_or(Ok(Link::nvlink()), |link| {
            self.link(
                link,
                link.get_ref().latency_ns,
                link.get_ref().bytes_per_second,
            )
        })?;
        let ids: Vec<DeviceId> = (0..raw.device.len()).filter_map(DeviceId::new).collect();
        for from in &ids {
            for to in ids.iter().filter(|to| *to != from) {
                config.set_link(
                    *from,
                    *to,
                    Link {
                        access: PeerAccess::Absent,
                        ..usual
                    },
                );
            }
        }
        for (from, device) in ids.iter().zip(&raw.device) {
            let lists = [
                (PeerAccess::Direct, &device.get_ref().peers),
                (PeerAccess::Broken, &device.get_ref().broken_peers),
            ];
            for (access, peers) in lists {
                for peer in peers {
                    self.list_peer(config, *from, peer, Link { access, ..usual })?;
                }
            }
        }
        self.both_ways(raw, config, &ids)?;
        for pair in &raw.pair {
            self.pair(config, pair)?;
        }
        Ok(())
    }

    fn list_peer(
        &self,
        config: &mut SimConfig,
        from: DeviceId,
        peer: &Spanned<usize>,
        link: Link,
    ) -> Result<(), InputError> {
        let number = *peer.get_ref();
        let to = DeviceId::new(number).filter(|to| to.index() < config.devices.len());
        let Some(to) = to.filter(|to| *to != from) else {
            return Err(self.error(
                peer,
                format!("device {} lists {number} as a peer", from.index()),
                format!("list other devices of 0 to {}", config.devices.len() - 1),
            ));
        };
        if config
            .link(from, to)
            .is_some_and(|there| there.access != PeerAccess::Absent)
        {
            return Err(self.error(
                peer,
                format!("device {} lists {number} twice", from.index()),
                "list each peer once, in peers or in broken_peers",
            ));
        }
        config.set_link(from, to, link);
        Ok(())
    }

    fn both_ways(
        &self,
        raw: &RawTopology,
        config: &SimConfig,
        ids: &[DeviceId],
    ) -> Result<(), InputError> {
        let listed = |a, b| {
            config
                .link(a, b)
                .is_some_and(|link| link.access != PeerAccess::Absent)
        };
        for (from, device) in ids.iter().zip(&raw.device) {
            if let Some(to) = ids
                .iter()
                .find(|to| listed(*from, **to) && !listed(**to, *from))
            {
                let (from, to) = (from.index(), to.index());
                let fields = device.get_ref();
                let mut written = fields.peers.iter().chain(&fields.broken_peers);
                let problem =
                    format!("device {from} lists {to} as a peer, but {to} does not list {from}");
                let remedy = format!("add {from} to peers or broken_peers of device {to}");
                return Err(match written.find(|peer| *peer.get_ref() == to) {
                    Some(peer) => self.error(peer, problem, remedy),
                    None => self.error(device, problem, remedy),
                });
            }
        }
        Ok(())
    }

    fn pair(&self, config: &mut SimConfig, pair: &Spanned<RawPair>) -> Result<(), InputError> {
        let RawPair {
            from,
            to,
            latency_ns,
            bytes_per_second,
        } = *pair.get_ref();
        let ids = DeviceId::new(from)
            .zip(DeviceId::new(to))
            .filter(|(a, b)| a != b);
        let link = ids.and_then(|(a, b)| Some((a, b, config.link(a, b)?)));
        let Some((a, b, link)) = link.filter(|(.., link)| link.access != PeerAccess::Absent) else {
            return Err(self.error(
                pair,
                format!("there is no path from {from} to {to}"),
                "give figures only for pairs that peers or broken_peers list",
            ));
        };
        let figures = self.link(pair, latency_ns, bytes_per_second)?;
        config.set_link(
            a,
            b,
            Link {
                access: link.access,
                ..figures
            },
        );
        Ok(())
    }

    fn link<T>(
        &self,
        at: &Spanned<T>,
        latency_ns: u64,
        bytes_per_second: u64,
    ) -> Result<Link, InputError> {
        if bytes_per_second == 0 {
            return Err(self.error(
                at,
                "the link has no bandwidth",
                "write bytes_per_second above zero",
            ));
        }
        Ok(Link {
            access: PeerAccess::Direct,
            latency_ns,
            bytes_per_second,
        })
    }
}
