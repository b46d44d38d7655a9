//! What there is: devices, ports, their tables, and which of them would be taken.

use std::fmt;
use std::net::IpAddr;

use super::calls::{CallError, Device, Library, Port, PortState};
use super::gid::{Choice, Gid, GidTable, rank_gids};

/// The most entries of a table that are looked at.
const ENTRIES_MAX: u32 = 1024;

/// A port with its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Its number.
    pub number: u8,
    /// What it says of itself.
    pub port: Port,
    /// Its table, empty entries left out.
    pub table: GidTable,
}

impl PortReport {
    /// Whether gates could pass here.
    #[must_use]
    pub fn usable(&self) -> bool {
        self.port.state == PortState::Active && !self.table.gids.is_empty()
    }

    /// The entries that would be tried with a peer of which nothing is known, best first.
    #[must_use]
    pub fn ranked(&self) -> Vec<Choice> {
        rank_gids(&self.table, None)
    }
}

/// A device with its ports, or why it could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Its ports.
    pub ports: Result<Vec<PortReport>, CallError>,
}

/// Looks at every device.
///
/// # Errors
/// [`CallError`]: the library cannot list them.
pub fn survey(library: &dyn Library) -> Result<Vec<DeviceReport>, CallError> {
    let names = library.devices()?;
    let reports = names.into_iter().map(|name| DeviceReport {
        ports: library.open(&name).and_then(|device| ports(&*device)),
        name,
    });
    Ok(reports.collect())
}

fn ports(device: &dyn Device) -> Result<Vec<PortReport>, CallError> {
    let numbers = device.ports().into_iter();
    numbers
        .map(|number| {
            let port = device.port(number)?;
            Ok(PortReport {
                number,
                port,
                table: table(device, number, &port)?,
            })
        })
        .collect()
}

/// A port's table as it is now.
pub(super) fn table(device: &dyn Device, number: u8, port: &Port) -> Result<GidTable, CallError> {
    let mut gids = Vec::new();
    for index in 0..port.gids.min(ENTRIES_MAX) {
        gids.extend(device.gid(number, index)?);
    }
    Ok(GidTable {
        link: port.link,
        gids,
    })
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// A device by its name.
    pub device: Option<String>,
    /// An entry of its table by its index.
    pub gid_index: Option<u32>,
}

/// Why no port can be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPort {
    /// There is no device at all.
    NoDevice,
    /// None has the name that was asked for.
    NoSuchDevice {
        /// The name.
        name: String,
        /// Those that there are.
        there: Vec<String>,
    },
    /// No port is active, or the active ones have no address.
    NoneActive(Vec<String>),
    /// The port's table has no such entry.
    NoSuchGid {
        /// The index.
        index: u32,
        /// The port, in words.
        port: String,
        /// The indices that hold something.
        there: Vec<u32>,
    },
}

impl fmt::Display for NoPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDevice => f.write_str("this host has no RDMA device"),
            Self::NoSuchDevice { name, there } => write!(
                f,
                "there is no RDMA device {name}; there are {}",
                there.join(", ")
            ),
            Self::NoneActive(why) => write!(f, "no RDMA port can be used: {}", why.join("; ")),
            Self::NoSuchGid { index, port, there } => write!(
                f,
                "entry {index} of the table of {port} holds no address; {there:?} do"
            ),
        }
    }
}

/// A port that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The device's name.
    pub device: String,
    /// The port, its table cut to what the user allows.
    pub report: PortReport,
}

/// Takes a port: the user's, else the one that has the address by which the ranks talk already,
/// else the first that can be used.
///
/// # Errors
/// [`NoPort`].
pub fn take(reports: &[DeviceReport], wish: &Wish, talks_by: &[IpAddr]) -> Result<Taken, NoPort> {
    if reports.is_empty() {
        return Err(NoPort::NoDevice);
    }
    let named = |report: &&DeviceReport| wish.device.as_ref().is_none_or(|it| *it == report.name);
    let candidates: Vec<&DeviceReport> = reports.iter().filter(named).collect();
    if candidates.is_empty() {
        return Err(NoPort::NoSuchDevice {
            name: wish.device.clone().unwrap_or_default(),
            there: reports.iter().map(|it| it.name.clone()).collect(),
        });
    }
    let mut usable: Vec<(&str, &PortReport)> = Vec::new();
    let mut why_not = Vec::new();
    for device in candidates {
        match &device.ports {
            Err(error) => why_not.push(format!("{}: {error}", device.name)),
            Ok(ports) => {
                for port in ports {
                    if port.usable() {
                        usable.push((&device.name, port));
                    } else {
                        why_not.push(format!("{} is {}", words(&device.name, port), lacks(port)));
                    }
                }
            }
        }
    }
    let talking = |(_, port): &&(&str, &PortReport)| {
        let mut gids = port.table.gids.iter();
        gids.any(|gid| talks_by.iter().any(|ip| is_address(gid, *ip)))
    };
    let taken = usable.iter().find(talking).or(usable.first());
    let Some((device, port)) = taken else {
        return Err(NoPort::NoneActive(why_not));
    };
    let mut report = (*port).clone();
    if let Some(index) = wish.gid_index {
        let there = report.table.gids.iter().map(|gid| gid.index).collect();
        report.table.gids.retain(|gid| gid.index == index);
        if report.table.gids.is_empty() {
            let port = words(device, port);
            return Err(NoPort::NoSuchGid { index, port, there });
        }
    }
    Ok(Taken {
        device: (*device).to_owned(),
        report,
    })
}

fn words(device: &str, port: &PortReport) -> String {
    format!("{device} port {}", port.number)
}

fn lacks(port: &PortReport) -> String {
    if port.port.state == PortState::Active {
        "active and has no address".to_owned()
    } else {
        port.port.state.to_string()
    }
}

fn is_address(gid: &Gid, ip: IpAddr) -> bool {
    let own = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    gid.address() == own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::verbs::calls::Mtu;
    use crate::transport::verbs::gid::{GidKind, LinkLayer};

    fn port(state: PortState, addresses: &[&str]) -> PortReport {
        let mtu = Mtu::from_code(3).unwrap();
        let gids = (0..).zip(addresses).map(|(index, address)| Gid {
            index,
            kind: GidKind::RoceV2,
            raw: address.parse::<std::net::Ipv6Addr>().unwrap().octets(),
            interface: Some("eth0".to_owned()),
        });
        PortReport {
            number: 1,
            port: Port {
                state,
                link: LinkLayer::Ethernet,
                lid: 0,
                active_mtu: mtu,
                max_mtu: mtu,
                max_message_bytes: 1 << 30,
                gids: 8,
            },
            table: GidTable {
                link: LinkLayer::Ethernet,
                gids: gids.collect(),
            },
        }
    }

    fn devices() -> Vec<DeviceReport> {
        let device = |name: &str, ports| DeviceReport {
            name: name.to_owned(),
            ports,
        };
        vec![
            device("mlx5_0", Ok(vec![port(PortState::Down, &["fe80::1"])])),
            device(
                "mlx5_1",
                Ok(vec![port(
                    PortState::Active,
                    &["fe80::2", "::ffff:10.0.0.2"],
                )]),
            ),
            device(
                "mlx5_2",
                Ok(vec![port(PortState::Active, &["::ffff:10.0.1.2"])]),
            ),
            device("mlx5_3", Err(CallError::new("ibv_open_device", 13))),
        ]
    }

    #[test]
    fn the_port_of_the_ranks_own_address_is_taken_and_else_the_first_that_works() {
        let taken = |ips: &[IpAddr]| take(&devices(), &Wish::default(), ips).unwrap().device;
        assert_eq!(taken(&[]), "mlx5_1");
        assert_eq!(taken(&["10.0.1.2".parse().unwrap()]), "mlx5_2");
        assert_eq!(taken(&["192.168.0.1".parse().unwrap()]), "mlx5_1");
    }

    #[test]
    fn a_wish_is_taken_at_its_word_and_refused_in_words() {
        let wish = |device: &str, gid_index| Wish {
            device: Some(device.to_owned()),
            gid_index,
        };
        let said = |wish: &Wish| take(&devices(), wish, &[]).unwrap_err().to_string();
        let all = [
            said(&wish("mlx5_0", None)),
            said(&wish("mlx5_3", None)),
            said(&wish("mlx9", None)),
            said(&wish("mlx5_1", Some(7))),
            take(&[], &Wish::default(), &[]).unwrap_err().to_string(),
        ];
        insta::assert_snapshot!(all.join("\n"), @r"
        no RDMA port can be used: mlx5_0 port 1 is down
        no RDMA port can be used: mlx5_3: ibv_open_device failed: Permission denied (os error 13)
        there is no RDMA device mlx9; there are mlx5_0, mlx5_1, mlx5_2, mlx5_3
        entry 7 of the table of mlx5_1 port 1 holds no address; [0, 1] do
        this host has no RDMA device
        ");
        let taken = take(&devices(), &wish("mlx5_1", Some(0)), &[]).unwrap();
        assert_eq!(taken.report.table.gids.len(), 1);
    }
}
