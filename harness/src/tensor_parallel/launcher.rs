//! Which rank this is, as the launcher that started it says in the environment.
//!
//! A launcher may run inside another one (torchrun or mpirun in a Slurm step): the innermost counts,
//! and Slurm's numbers are then those of its own tasks.

/// Reads an environment variable.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The port of the leader where nothing else says one.
const PORT: u16 = 12_345;
const RANKS_MAX: u32 = 32;

/// What a launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launched {
    /// Its name.
    pub(super) by: &'static str,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// The rank among those of its host.
    pub(super) local_rank: Option<u32>,
    /// Whether all ranks run on one host, as far as it is known.
    pub(super) one_host: bool,
    /// The host of rank 0.
    pub(super) leader: Option<String>,
    /// The port on which rank 0 listens.
    pub(super) port: u16,
}

/// The variables of a launcher.
struct Names {
    by: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    /// How many ranks the host has.
    local_ranks: &'static str,
}

const TORCHRUN: Names = Names {
    by: "torchrun",
    rank: "RANK",
    ranks: "WORLD_SIZE",
    local_rank: "LOCAL_RANK",
    local_ranks: "LOCAL_WORLD_SIZE",
};

const OPEN_MPI: Names = Names {
    by: "Open MPI",
    rank: "OMPI_COMM_WORLD_RANK",
    ranks: "OMPI_COMM_WORLD_SIZE",
    local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
    local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
};

const PMI: Names = Names {
    by: "PMI",
    rank: "PMI_RANK",
    ranks: "PMI_SIZE",
    local_rank: "MPI_LOCALRANKID",
    local_ranks: "MPI_LOCALNRANKS",
};

const SLURM: Names = Names {
    by: "Slurm",
    rank: "SLURM_PROCID",
    ranks: "SLURM_NTASKS",
    local_rank: "SLURM_LOCALID",
    local_ranks: "SLURM_NTASKS_PER_NODE",
};

const NO_LAUNCHER: &str = "--role auto takes the rank from a launcher, and none is there: neither \
     RANK and WORLD_SIZE (torchrun) nor SLURM_PROCID and SLURM_NTASKS (srun) nor \
     OMPI_COMM_WORLD_RANK and _SIZE (mpirun) nor PMI_RANK and PMI_SIZE are set";

/// What the innermost launcher says.
///
/// # Errors
/// A sentence: there is none, a variable is missing beside another one or is no such number, or two
/// launchers say different things.
pub(super) fn launched(variables: Variables<'_>) -> Result<Launched, String> {
    let mut found: Vec<(Launched, &Names)> = Vec::new();
    for names in [&TORCHRUN, &OPEN_MPI, &PMI] {
        found.extend(read(names, variables)?.map(|it| (it, names)));
    }
    if let [(first, names), others @ ..] = found.as_slice()
        && let Some((other, theirs)) = others
            .iter()
            .find(|(other, _)| (other.rank, other.ranks) != (first.rank, first.ranks))
    {
        return Err(format!(
            "{}={} of {}={} and {}={} of {}={} do not agree: unset those of the launcher that did \
             not start this rank",
            names.rank,
            first.rank,
            names.ranks,
            first.ranks,
            theirs.rank,
            other.rank,
            theirs.ranks,
            other.ranks
        ));
    }
    let slurm = |by: &Launched| with_nodes(by.clone(), variables);
    let mut launched = match found.into_iter().next() {
        // srun that also speaks PMI: Slurm knows more, if it is the one that started this rank.
        Some((inner, names)) if names.by == PMI.by => {
            let outer = read(&SLURM, variables).ok().flatten();
            let outer = outer.filter(|it| (it.rank, it.ranks) == (inner.rank, inner.ranks));
            outer.as_ref().map_or(inner, slurm)
        }
        Some((inner, _)) => inner,
        None => slurm(&read(&SLURM, variables)?.ok_or(NO_LAUNCHER)?),
    };
    if launched.by == TORCHRUN.by {
        (launched.leader, launched.port) = master(variables)?;
    }
    Ok(launched)
}

/// What one launcher says, if it says anything.
fn read(names: &Names, variables: Variables<'_>) -> Result<Option<Launched>, String> {
    let get = |name| number(name, variables);
    let (rank, ranks) = match (get(names.rank)?, get(names.ranks)?) {
        (Some(rank), Some(ranks)) => (rank, ranks),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(half(names.rank, names.ranks)),
        // Slurm says how many tasks a job has before it starts one.
        (None, Some(_)) if names.by == SLURM.by => return Ok(None),
        (None, Some(_)) => return Err(half(names.ranks, names.rank)),
    };
    if !(2..=RANKS_MAX).contains(&ranks) {
        return Err(format!(
            "{}={ranks}: a run has from 2 to {RANKS_MAX} ranks",
            names.ranks
        ));
    }
    if rank >= ranks {
        return Err(format!(
            "{}={rank} is not below {}={ranks}",
            names.rank, names.ranks
        ));
    }
    let local_rank = get(names.local_rank)?;
    // They need not come in the order of the ranks.
    if let Some(local) = local_rank.filter(|local| *local >= ranks) {
        return Err(format!(
            "{}={local} is not below {}={ranks}",
            names.local_rank, names.ranks
        ));
    }
    // What Slurm says are all nodes' numbers of tasks.
    let local_ranks = if names.by == SLURM.by {
        None
    } else {
        get(names.local_ranks)?
    };
    if let Some(count) = local_ranks {
        let local = local_rank.filter(|local| *local >= count);
        if count == 0 || count > ranks || local.is_some() {
            return Err(format!(
                "{}={count} does not go with {}={ranks}{}",
                names.local_ranks,
                names.ranks,
                local.map_or_else(String::new, |it| format!(" and {}={it}", names.local_rank))
            ));
        }
    }
    Ok(Some(Launched {
        by: names.by,
        rank,
        ranks,
        local_rank,
        one_host: local_ranks == Some(ranks),
        leader: None,
        port: PORT,
    }))
}

fn half(set: &str, missing: &str) -> String {
    format!("{set} is set and {missing} is not: a launcher sets both; unset {set} or set {missing}")
}

fn number(name: &str, variables: Variables<'_>) -> Result<Option<u32>, String> {
    let Some(text) = variables(name) else {
        return Ok(None);
    };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    let wrong = || format!("{name}='{}' is no number of ranks", text.escape_debug());
    number.ok_or_else(wrong).map(Some)
}

/// Where torchrun says that rank 0 is. Its own store listens on `MASTER_PORT`, so that the leader
/// takes the next one.
fn master(variables: Variables<'_>) -> Result<(Option<String>, u16), String> {
    let port = variables("MASTER_PORT");
    match (variables("MASTER_ADDR"), port) {
        (None, None) => Ok((None, PORT)),
        (Some(_), None) => Err(half("MASTER_ADDR", "MASTER_PORT")),
        (None, Some(_)) => Err(half("MASTER_PORT", "MASTER_ADDR")),
        (Some(host), Some(_)) if host.trim().is_empty() => {
            Err("MASTER_ADDR is empty; it says where rank 0 is".to_owned())
        }
        (Some(host), Some(text)) => match text.parse::<u16>().ok().and_then(|it| it.checked_add(1))
        {
            Some(next @ 2..) => Ok((Some(host), next)),
            _ => Err(format!(
                "MASTER_PORT='{}' is no port below 65535",
                text.escape_debug()
            )),
        },
    }
}

/// Slurm's nodes: the first of the step has rank 0, and the job's number tells runs of a host apart.
fn with_nodes(launched: Launched, variables: Variables<'_>) -> Launched {
    const PORTS: u64 = 10_000;
    let step = |name: &str| variables(&format!("SLURM_STEP_{name}"));
    let nodes = step("NODELIST").or_else(|| variables("SLURM_JOB_NODELIST"));
    let first = nodes.as_deref().and_then(first_host);
    let count = step("NUM_NODES").or_else(|| variables("SLURM_NNODES"));
    let job = variables("SLURM_JOB_ID").and_then(|it| it.parse::<u64>().ok());
    let step_number = step("ID").and_then(|it| it.parse::<u64>().ok());
    let port = job.map(|job| 20_000 + job.wrapping_add(step_number.unwrap_or(0)) % PORTS);
    Launched {
        one_host: count.as_deref() == Some("1"),
        leader: first.or_else(|| variables("SLURM_LAUNCH_NODE_IPADDR")),
        port: port.and_then(|it| u16::try_from(it).ok()).unwrap_or(PORT),
        ..launched
    }
}

/// The first host of a list such as `node[001-004,007],other`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.chars();
    while let Some(letter) = rest.next() {
        match letter {
            ',' => break,
            '[' => {
                let mut taking = true;
                for inner in rest.by_ref() {
                    match inner {
                        ']' => break,
                        ',' | '-' => taking = false,
                        inner if taking => host.push(inner),
                        _ => {}
                    }
                }
            }
            letter => host.push(letter),
        }
    }
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said for variables as `A=1 B=2`.
    fn said(text: &str) -> Result<Launched, String> {
        let pairs: Vec<(&str, &str)> = text
            .split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .collect();
        launched(&|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn shown(text: &str) -> String {
        match said(text) {
            Err(why) => why,
            Ok(it) => {
                let local = it.local_rank.map_or("?".to_owned(), |it| it.to_string());
                let hosts = if it.one_host { "one host" } else { "hosts" };
                let leader = it.leader.as_deref().unwrap_or("?");
                let (by, port) = (it.by, it.port);
                format!(
                    "{by}: {}/{} local {local}, {hosts}, {leader} {port}",
                    it.rank, it.ranks
                )
            }
        }
    }

    #[test]
    fn each_launcher_is_understood() {
        let table = [
            "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 MASTER_ADDR=h0 MASTER_PORT=29500",
            "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=h0 MASTER_PORT=29500",
            "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 \
             SLURM_STEP_NODELIST=gpu-[07-08] SLURM_JOB_ID=123456 SLURM_STEP_ID=1 \
             SLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LAUNCH_NODE_IPADDR=10.0.0.1",
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
             OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "PMI_RANK=1 PMI_SIZE=3",
            // One inside the other.
            "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 SLURM_PROCID=0 SLURM_NTASKS=1",
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=0 SLURM_NTASKS=4",
            "PMI_RANK=1 PMI_SIZE=4 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0 SLURM_NNODES=1",
            "RANK=1 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4",
        ];
        insta::assert_snapshot!(table.map(shown).join("\n"), @r"
        torchrun: 3/8 local 3, one host, h0 29501
        torchrun: 9/16 local 1, hosts, h0 29501
        Slurm: 2/4 local 0, hosts, gpu-07 23457
        Slurm: 0/2 local ?, hosts, 10.0.0.1 12345
        Open MPI: 1/2 local 1, one host, ? 12345
        PMI: 1/3 local ?, hosts, ? 12345
        torchrun: 9/16 local 1, hosts, ? 12345
        Open MPI: 1/4 local ?, hosts, ? 12345
        Slurm: 1/4 local 0, one host, ? 12345
        torchrun: 1/4 local ?, hosts, ? 12345
        ");
    }

    #[test]
    fn what_is_half_set_wrong_or_contradicts_itself_is_named() {
        let table = [
            "",
            "RANK=1",
            "WORLD_SIZE=2",
            "SLURM_NTASKS=4",
            "SLURM_PROCID=1",
            "OMPI_COMM_WORLD_SIZE=4",
            "PMI_RANK=0",
            "RANK=2 WORLD_SIZE=2",
            "RANK=0 WORLD_SIZE=1",
            "RANK=0 WORLD_SIZE=33",
            "RANK=-1 WORLD_SIZE=2",
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=2",
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h",
            "RANK=1 WORLD_SIZE=2 MASTER_PORT=5",
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65535",
            "RANK=1 WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4",
            "RANK=1 WORLD_SIZE=2 MASTER_ADDR= MASTER_PORT=5",
            "RANK=\u{fffd} WORLD_SIZE=2",
            "RANK=1 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=2",
            "RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=999",
            "RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=0",
        ];
        insta::assert_snapshot!(table.map(shown).join("\n"), @r"
        --role auto takes the rank from a launcher, and none is there: neither RANK and WORLD_SIZE (torchrun) nor SLURM_PROCID and SLURM_NTASKS (srun) nor OMPI_COMM_WORLD_RANK and _SIZE (mpirun) nor PMI_RANK and PMI_SIZE are set
        RANK is set and WORLD_SIZE is not: a launcher sets both; unset RANK or set WORLD_SIZE
        WORLD_SIZE is set and RANK is not: a launcher sets both; unset WORLD_SIZE or set RANK
        --role auto takes the rank from a launcher, and none is there: neither RANK and WORLD_SIZE (torchrun) nor SLURM_PROCID and SLURM_NTASKS (srun) nor OMPI_COMM_WORLD_RANK and _SIZE (mpirun) nor PMI_RANK and PMI_SIZE are set
        SLURM_PROCID is set and SLURM_NTASKS is not: a launcher sets both; unset SLURM_PROCID or set SLURM_NTASKS
        OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not: a launcher sets both; unset OMPI_COMM_WORLD_SIZE or set OMPI_COMM_WORLD_RANK
        PMI_RANK is set and PMI_SIZE is not: a launcher sets both; unset PMI_RANK or set PMI_SIZE
        RANK=2 is not below WORLD_SIZE=2
        WORLD_SIZE=1: a run has from 2 to 32 ranks
        WORLD_SIZE=33: a run has from 2 to 32 ranks
        RANK='-1' is no number of ranks
        LOCAL_RANK=2 is not below WORLD_SIZE=2
        MASTER_ADDR is set and MASTER_PORT is not: a launcher sets both; unset MASTER_ADDR or set MASTER_PORT
        MASTER_PORT is set and MASTER_ADDR is not: a launcher sets both; unset MASTER_PORT or set MASTER_ADDR
        MASTER_PORT='65535' is no port below 65535
        RANK=1 of WORLD_SIZE=4 and OMPI_COMM_WORLD_RANK=2 of OMPI_COMM_WORLD_SIZE=4 do not agree: unset those of the launcher that did not start this rank
        MASTER_ADDR is empty; it says where rank 0 is
        RANK='�' is no number of ranks
        LOCAL_WORLD_SIZE=2 does not go with WORLD_SIZE=4 and LOCAL_RANK=3
        LOCAL_WORLD_SIZE=999 does not go with WORLD_SIZE=2
        LOCAL_WORLD_SIZE=0 does not go with WORLD_SIZE=2
        ");
    }

    #[test]
    fn the_first_host_of_a_list_is_found_in_brackets_too() {
        for (list, host) in [
            ("one", "one"),
            ("one,two", "one"),
            ("node[001-004,007],other", "node001"),
            ("rack[3,5]-n[10-12]", "rack3-n10"),
            ("node[7].cluster", "node7.cluster"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host));
        }
        assert_eq!(first_host(""), None);
        assert_eq!(first_host("[").as_deref(), None);
    }
}
