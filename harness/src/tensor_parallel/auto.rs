//! `--role auto`: from what the launcher says to a rank, where it listens, whom it dials and which
//! device is its own. Every rank is started with the same words.

use ds4_engine::backend::driver::{Driver, Vendor};
use ds4_engine::transport::Remote;

use super::launcher::{Launched, launched};
use super::plan::{Place, place};
use crate::cli::{MachineArgs, RankArgs};
use crate::machine::backend_kind;
use crate::output::Failure;
use crate::target::BackendKind;

/// A rank that a launcher started.
#[derive(Debug)]
pub(super) struct Auto {
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) listen: Option<Place>,
    pub(super) remotes: Vec<Remote>,
    pub(super) machine: MachineArgs,
    /// What a person must know.
    pub(super) note: String,
}

/// Resolves the flags of a rank that a launcher started; nothing for another role.
///
/// # Errors
/// [`Failure`] of usage: flags that the launcher answers, or what the launcher says.
pub(super) fn resolve(args: &RankArgs, machine: &MachineArgs) -> Result<Option<Auto>, Failure> {
    if args.role.as_deref() != Some("auto") {
        return Ok(None);
    }
    let told = [
        ("--rank", args.rank.is_some()),
        ("--peer", !args.peer.is_empty()),
        ("--listen", args.listen.is_some()),
    ];
    if let Some((flag, _)) = told.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "--role auto finds {flag} by itself, the same words on all ranks; leave it out \
             (--coordinator HOST PORT says where rank 0 is, if the launcher does not)"
        )));
    }
    // What is no text is refused as what it says, and not taken for unset.
    let variable = |name: &str| std::env::var_os(name).map(|it| it.to_string_lossy().into_owned());
    let launched = launched(&variable).map_err(Failure::usage)?;
    if let Some(ranks) = args.ranks.filter(|ranks| *ranks != launched.ranks) {
        return Err(Failure::usage(format!(
            "--ranks {ranks}, and {} started {}; leave --ranks out",
            launched.by, launched.ranks
        )));
    }
    let leader = leader(args, &launched)?;
    let (listen, remotes) = places(&launched, &leader);
    let (machine, device) = own_device(&launched, machine)?;
    Ok(Some(Auto {
        rank: launched.rank,
        ranks: launched.ranks,
        note: format!(
            "{} started rank {} of {}{device}; rank 0 is at {} {}",
            launched.by, launched.rank, launched.ranks, leader.host, leader.port
        ),
        listen,
        remotes,
        machine,
    }))
}

/// Where rank 0 is.
fn leader(args: &RankArgs, launched: &Launched) -> Result<Place, Failure> {
    if let Some(words) = &args.coordinator {
        return place("--coordinator", words);
    }
    let host = match (&launched.leader, launched.one_host) {
        // A host's own name may stand for an address that nobody listens on.
        (_, true) => "127.0.0.1".to_owned(),
        (Some(host), false) => host.clone(),
        (None, false) => {
            return Err(Failure::usage(format!(
                "{} does not say where rank 0 is: give --coordinator HOST PORT, the same on all \
                 ranks",
                launched.by
            )));
        }
    };
    Ok(Place {
        host,
        port: launched.port,
    })
}

/// Where the rank listens, if a higher one dials it, and whom it dials beside those of whom the leader
/// tells it.
fn places(launched: &Launched, leader: &Place) -> (Option<Place>, Vec<Remote>) {
    let host = leader.host.trim_matches(['[', ']']);
    let local = ["localhost", "::1"].contains(&host) || host.starts_with("127.");
    let bound = if local {
        leader.host.clone()
    } else if host.contains(':') {
        "::".to_owned()
    } else {
        "0.0.0.0".to_owned()
    };
    let leads = launched.rank == 0;
    let port = if leads { leader.port } else { 0 };
    let listen = (launched.rank + 1 < launched.ranks).then_some(Place { host: bound, port });
    let remote = Remote {
        rank: 0,
        host: leader.host.clone(),
        port: leader.port,
    };
    (listen, (!leads).then_some(remote).into_iter().collect())
}

/// The device of the rank among those of its host, and how it is called.
fn own_device(
    launched: &Launched,
    machine: &MachineArgs,
) -> Result<(MachineArgs, String), Failure> {
    let vendor = match backend_kind(machine)? {
        BackendKind::Cuda => Vendor::Cuda,
        BackendKind::Hip => Vendor::Hip,
        BackendKind::Sim => return Ok((machine.clone(), String::new())),
    };
    // A driver that is missing is told of where its devices are opened.
    let count = Driver::load(vendor).map_or(0, |driver| driver.count());
    let device = choose(launched, machine.gpu_devices.as_deref(), count);
    let device = device.map_err(Failure::usage)?;
    let words = device.as_ref().map(|it| format!(", device {it}"));
    let machine = MachineArgs {
        gpu_devices: device.or_else(|| machine.gpu_devices.clone()),
        ..machine.clone()
    };
    Ok((machine, words.unwrap_or_default()))
}

/// Of the devices as typed, or else of those that the driver sees, the one of the local rank.
fn choose(launched: &Launched, typed: Option<&str>, count: u32) -> Result<Option<String>, String> {
    let Some(local) = launched.local_rank else {
        return match typed {
            None if count > 1 => Err(format!(
                "{} does not say which rank of its host this is, and the driver sees {count} \
                 devices: show each rank its own by CUDA_VISIBLE_DEVICES",
                launched.by
            )),
            _ => Ok(None),
        };
    };
    let own = |it: &str| Ok(Some(it.trim().to_owned()));
    if let Some(typed) = typed {
        let mut devices = typed.split(',');
        let found = usize::try_from(local).ok().and_then(|at| devices.nth(at));
        return found.map_or_else(
            || {
                Err(format!(
                    "--gpu-devices {typed} has none for local rank {local}"
                ))
            },
            own,
        );
    }
    match count {
        // Nothing to choose from: no driver, or the launcher has chosen.
        0 | 1 => Ok(None),
        _ if local < count => own(&local.to_string()),
        _ => Err(format!(
            "local rank {local} has no device: the driver sees {count}; start no more ranks on a \
             host than it has devices, or give --gpu-devices"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, ranks: u32, local_rank: Option<u32>) -> Launched {
        Launched {
            by: "torchrun",
            rank,
            ranks,
            local_rank,
            one_host: false,
            leader: Some("h0".to_owned()),
            port: 7,
        }
    }

    #[test]
    fn each_rank_listens_where_a_higher_one_reaches_it_and_dials_the_leader() {
        let at = |host: &str, it: u32| {
            let leader = Place {
                host: host.to_owned(),
                port: 7,
            };
            let (listen, remotes) = places(&rank(it, 3, None), &leader);
            let listen = listen.map_or("-".to_owned(), |it| format!("{} {}", it.host, it.port));
            let dials: Vec<String> = remotes
                .iter()
                .map(|it| format!("{} {}", it.host, it.port))
                .collect();
            format!("{listen} > {}", dials.join(","))
        };
        assert_eq!(at("127.0.0.1", 0), "127.0.0.1 7 > ");
        assert_eq!(at("localhost", 1), "localhost 0 > localhost 7");
        assert_eq!(at("h0", 0), "0.0.0.0 7 > ");
        assert_eq!(at("h0", 1), "0.0.0.0 0 > h0 7");
        assert_eq!(at("fd00::1", 1), ":: 0 > fd00::1 7");
        assert_eq!(at("h0", 2), "- > h0 7");
    }

    #[test]
    fn the_device_is_the_local_ranks() {
        let device = |local, typed, count| choose(&rank(3, 4, local), typed, count);
        assert_eq!(device(Some(3), None, 8), Ok(Some("3".to_owned())));
        assert_eq!(device(Some(1), Some("4, 6"), 8), Ok(Some("6".to_owned())));
        assert_eq!(device(Some(3), None, 1), Ok(None));
        assert_eq!(device(None, None, 1), Ok(None));
        assert_eq!(device(None, Some("5"), 8), Ok(None));
        assert!(device(Some(3), None, 2).unwrap_err().contains("sees 2"));
        assert!(
            device(Some(2), Some("0,1"), 8)
                .unwrap_err()
                .contains("local rank 2")
        );
        assert!(
            device(None, None, 2)
                .unwrap_err()
                .contains("CUDA_VISIBLE_DEVICES")
        );
    }
}
