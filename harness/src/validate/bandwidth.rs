//! How fast bytes move, and whether they arrive.

use std::cell::RefCell;

use ds4_engine::backend::BackendError;
use ds4_engine::bytes::{GIB, MIB};
use ds4_engine::device::{DeviceAddress, DeviceId, PeerAccess, StreamId};
use ds4_kernels::{Mismatch, Pattern};
use serde_json::{Value, json};

use super::field::{Block, RESULT_BYTES, Span, WORD_BYTES};
use super::load::{bytes_per_second, wrong_value};
use super::run::{Finding, Group, Probe, Stop, milliseconds};
use super::{CheckId, Did, Level, Verdict};

const fn test(name: &'static str, code: &'static str) -> CheckId {
    CheckId {
        name,
        code,
        level: Level::Test,
    }
}

const TO_DEVICE: CheckId = test("host-to-device", "DV-1006");
const TO_HOST: CheckId = test("device-to-host", "DV-1007");
const BOUNCE: CheckId = test("host-bounce", "DV-1008");
const LOCAL: CheckId = test("device-copy", "DV-1009");
const PEER: CheckId = test("peer-copy", "DV-1010");

pub(super) const GROUPS: &[Group] = &[
    Group {
        checks: &[TO_DEVICE],
        body: |probe| on_devices(probe, &TO_DEVICE, to_device),
    },
    Group {
        checks: &[TO_HOST],
        body: |probe| on_devices(probe, &TO_HOST, to_host),
    },
    Group {
        checks: &[BOUNCE],
        body: |probe| on_devices(probe, &BOUNCE, bounce),
    },
    Group {
        checks: &[LOCAL],
        body: |probe| on_devices(probe, &LOCAL, local),
    },
    Group {
        checks: &[PEER],
        body: peers,
    },
];

/// Timed rounds after one that is not; the median counts.
const ROUNDS: usize = 5;
/// The most bytes of one copy with the host, whose memory they also take.
const HOST_BYTES: u64 = 256 * MIB;
/// The most bytes of one copy between devices.
const COPY_BYTES: u64 = 2 * GIB;
/// What a destination holds before bytes arrive.
const POISON: u8 = 0xA5;
const PATTERN: Pattern = Pattern::Random { seed: 0xBEEF };
/// Below this part of the median of like devices, in percent, one stands out: as in gpu-fryer,
/// which fails a device more than 10 % below the best.
const LIKE_PERCENT: u64 = 90;
const LIKE_SOURCE: &str = "like devices of this machine; 90 % is gpu-fryer's tolerance";

/// A figure, or what came instead.
enum Outcome {
    Speed { rate: u64, did: Did },
    Done(Finding),
}

/// One outcome with the place it is about; `like` names what it is compared with.
struct Row {
    place: String,
    like: String,
    device: DeviceId,
    outcome: Outcome,
}

fn on_devices(
    probe: &Probe<'_>,
    check: &CheckId,
    body: fn(&Probe<'_>, DeviceId) -> Result<Outcome, Stop>,
) {
    let mut rows = Vec::new();
    for id in probe.devices() {
        if probe.stopped() {
            break;
        }
        let Some(outcome) = unless_interrupted(body(probe, id)) else {
            break;
        };
        rows.push(Row {
            place: id.to_string(),
            like: probe.name(id).to_owned(),
            device: id,
            outcome,
        });
    }
    judge(probe, check, rows);
}

/// What came of a device; nothing if the user ended it, which says nothing about the device.
fn unless_interrupted(result: Result<Outcome, Stop>) -> Option<Outcome> {
    match result {
        Ok(outcome) => Some(outcome),
        Err(Stop::Backend(error)) => Some(Outcome::Done(Finding::of_error(&error))),
        Err(Stop::Interrupted) => None,
    }
}

/// Holds each figure against its expectation, else against the others.
fn judge(probe: &Probe<'_>, check: &CheckId, rows: Vec<Row>) {
    let speeds: Vec<(String, u64)> = rows
        .iter()
        .filter_map(|row| match &row.outcome {
            Outcome::Speed { rate, .. } => Some((row.like.clone(), *rate)),
            Outcome::Done(_) => None,
        })
        .collect();
    for row in rows {
        let finding = match row.outcome {
            Outcome::Done(finding) => finding,
            Outcome::Speed { rate, did } => {
                let own = probe
                    .subject
                    .expectations
                    .of(check.name, probe.name(row.device));
                let detail = format!("{} GB/s, all bytes verified", gigabytes(rate));
                let finding = match own {
                    Some(own) if rate < own.at_least => {
                        Finding::new(own.otherwise, did, detail).hint(
                            "look at throttle, pcie and nvlink above, and at who else uses the device",
                        )
                    }
                    Some(_) => Finding::pass(did, detail),
                    None => among(&speeds, &row.like, rate, did, detail),
                };
                let finding = match own {
                    Some(own) => {
                        let wish = format!("at least {} GB/s", gigabytes(own.at_least));
                        finding.expected(wish, &own.source)
                    }
                    None => finding,
                };
                finding.measured(json!({ "bytes_per_second": rate }))
            }
        };
        probe.tell(check, Some(row.place), finding);
    }
}

/// A figure among those of like devices.
fn among(speeds: &[(String, u64)], like: &str, rate: u64, did: Did, detail: String) -> Finding {
    let mut alike: Vec<u64> = speeds
        .iter()
        .filter(|(name, _)| name == like)
        .map(|(_, rate)| *rate)
        .collect();
    alike.sort_unstable();
    let median = match alike.get(alike.len() / 2) {
        Some(median) if alike.len() > 1 => *median,
        _ => return Finding::new(Verdict::Skip, did, format!("{detail}; no expectation")),
    };
    let wish = format!("{LIKE_PERCENT} % of {} GB/s", gigabytes(median));
    let enough = u128::from(rate) * 100 >= u128::from(median) * u128::from(LIKE_PERCENT);
    let finding = match (enough, alike.len()) {
        (true, _) => Finding::pass(did, detail),
        // Of two, either may be the odd one.
        (false, 2) => Finding::warn(did, detail).hint("slower than the other like it"),
        (false, _) => Finding::new(Verdict::Fail, did, detail).hint("slower than those like it"),
    };
    finding.expected(wish, LIKE_SOURCE)
}

/// Tenths of gigabytes, rounded down.
fn gigabytes(rate: u64) -> String {
    format!("{}.{}", rate / 1_000_000_000, rate / 100_000_000 % 10)
}

/// Bytes per copy: whole words, so many that source, destination and results fit the quota.
fn copy_bytes(probe: &Probe<'_>, id: DeviceId, most: u64) -> Result<u64, BackendError> {
    let granule = probe
        .info(id)
        .map_or(1, |info| info.granularity_bytes)
        .max(1);
    let part = (probe.quota(id)? / 4).min(most);
    Ok((part / granule * granule).max(granule.min(part)) / WORD_BYTES * WORD_BYTES)
}

/// What was lost on the way, in words and figures.
type Lost = Option<(String, Value)>;

/// Copies again and again, each time into poisoned memory that is looked at afterwards; the median
/// time counts, that of the first copy does not.
fn timed(
    probe: &Probe<'_>,
    moved_bytes: u64,
    poison: &dyn Fn() -> Result<(), BackendError>,
    copy: &dyn Fn() -> Result<(), BackendError>,
    lost: &dyn Fn() -> Result<Lost, BackendError>,
) -> Result<Outcome, Stop> {
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        if probe.stopped() {
            return Err(Stop::Interrupted);
        }
        poison()?;
        let timer = probe.timer();
        copy()?;
        if round > 0 {
            times.push(timer.ns());
        }
        if let Some((what, measured)) = lost()? {
            let rounds = round as u64 + 1;
            let did = timer.did(rounds * moved_bytes, rounds);
            let finding = Finding::fail(did, format!("bytes were lost on the way: {what}"));
            return Ok(Outcome::Done(finding.measured(measured)));
        }
    }
    let did = Did {
        bytes: moved_bytes * ROUNDS as u64,
        ops: ROUNDS as u64,
        ms: milliseconds(times.iter().sum()),
    };
    times.sort_unstable();
    let median = times.get(ROUNDS / 2).copied().unwrap_or(0);
    Ok(Outcome::Speed {
        rate: bytes_per_second(moved_bytes, median),
        did,
    })
}

/// A span over a block with its result behind it.
fn span<'a>(probe: &Probe<'a>, device: DeviceId, block: &Block<'_>, bytes: u64) -> Span<'a> {
    Span {
        backend: &**probe.subject.target.backend(),
        device,
        stream: StreamId::DEFAULT,
        address: block.address,
        words: bytes / WORD_BYTES,
        first_position: 0,
        result: DeviceAddress(block.address.0 + bytes),
    }
}

fn poison(span: &Span<'_>) -> Result<(), BackendError> {
    let bytes = span.words * WORD_BYTES;
    span.backend
        .fill(span.device, span.address, bytes, POISON, span.stream)?;
    span.wait()
}

/// What of the pattern did not arrive.
fn missing(to: &Span<'_>) -> Result<Lost, BackendError> {
    let wrong = to.check(PATTERN)?;
    Ok(wrong.map(|wrong| (wrong.sentence(), wrong_value(&wrong))))
}

fn host_words(bytes: u64) -> Vec<[u8; 8]> {
    vec![[0; 8]; usize::try_from(bytes / WORD_BYTES).unwrap_or(0)]
}

fn none() -> Outcome {
    Outcome::Done(Finding::skip(
        "too little memory may be taken to copy anything",
    ))
}

fn to_device(probe: &Probe<'_>, id: DeviceId) -> Result<Outcome, Stop> {
    let bytes = copy_bytes(probe, id, HOST_BYTES)?;
    if bytes == 0 {
        return Ok(none());
    }
    let backend = probe.backend();
    let block = Block::take(backend, id, bytes + RESULT_BYTES)?;
    let target = span(probe, id, &block, bytes);
    let mut host = host_words(bytes);
    PATTERN.write(&mut host, 0);
    let copy = || backend.write(id, block.address, host.as_flattened());
    timed(probe, bytes, &|| poison(&target), &copy, &|| {
        missing(&target)
    })
}

fn to_host(probe: &Probe<'_>, id: DeviceId) -> Result<Outcome, Stop> {
    let bytes = copy_bytes(probe, id, HOST_BYTES)?;
    if bytes == 0 {
        return Ok(none());
    }
    let backend = probe.backend();
    let block = Block::take(backend, id, bytes + RESULT_BYTES)?;
    let source = span(probe, id, &block, bytes);
    source.write(PATTERN)?;
    source.wait()?;
    let host = RefCell::new(host_words(bytes));
    let spoil = || {
        host.borrow_mut().as_flattened_mut().fill(POISON);
        Ok(())
    };
    let copy = || backend.read(id, block.address, host.borrow_mut().as_flattened_mut());
    let lost = || {
        let wrong = PATTERN.check(&host.borrow(), 0).err();
        Ok(wrong.map(|wrong| {
            let Mismatch {
                position,
                expected,
                found,
            } = wrong;
            let what = format!("word {position} is {found:#018x}, expected {expected:#018x}");
            (what, json!({ "position": position }))
        }))
    };
    timed(probe, bytes, &spoil, &copy, &lost)
}

/// Through page-locked memory of the host and back to the same device; both ways count.
fn bounce(probe: &Probe<'_>, id: DeviceId) -> Result<Outcome, Stop> {
    within(probe, id, HOST_BYTES, &|from, to, bytes| {
        probe.backend().copy_via_host((id, from), (id, to), bytes)
    })
}

/// From one place of the device to another; what is read and what is written both count.
fn local(probe: &Probe<'_>, id: DeviceId) -> Result<Outcome, Stop> {
    within(probe, id, COPY_BYTES, &|from, to, bytes| {
        let backend = probe.backend();
        backend.copy_local(id, from, to, bytes, StreamId::DEFAULT)?;
        backend.synchronize(id, StreamId::DEFAULT)
    })
}

type Copy<'a> = &'a dyn Fn(DeviceAddress, DeviceAddress, u64) -> Result<(), BackendError>;

fn within(probe: &Probe<'_>, id: DeviceId, most: u64, copy: Copy<'_>) -> Result<Outcome, Stop> {
    let bytes = copy_bytes(probe, id, most)?;
    if bytes == 0 {
        return Ok(none());
    }
    let backend = probe.backend();
    let blocks = (
        Block::take(backend, id, bytes + RESULT_BYTES)?,
        Block::take(backend, id, bytes + RESULT_BYTES)?,
    );
    let from = span(probe, id, &blocks.0, bytes);
    let to = span(probe, id, &blocks.1, bytes);
    from.write(PATTERN)?;
    from.wait()?;
    let copy = || copy(from.address, to.address, bytes);
    timed(probe, 2 * bytes, &|| poison(&to), &copy, &|| missing(&to))
}

fn peers(probe: &Probe<'_>) {
    let mut rows = Vec::new();
    if probe.devices().count() < 2 {
        probe.tell(&PEER, None, Finding::skip("there is one device only"));
    }
    for (from, to) in probe.pairs() {
        if probe.stopped() {
            break;
        }
        let Some(outcome) = unless_interrupted(peer(probe, from, to)) else {
            break;
        };
        rows.push(Row {
            place: format!("{from}->{to}"),
            like: format!("{} to {}", probe.name(from), probe.name(to)),
            device: from,
            outcome,
        });
    }
    judge(probe, &PEER, rows);
}

fn peer(probe: &Probe<'_>, from: DeviceId, to: DeviceId) -> Result<Outcome, Stop> {
    let backend = probe.backend();
    if backend.peer_access(from, to)? != PeerAccess::Direct {
        let why = "there is no direct path that works; see peer-access";
        return Ok(Outcome::Done(Finding::skip(why)));
    }
    let bytes = copy_bytes(probe, from, COPY_BYTES)?.min(copy_bytes(probe, to, COPY_BYTES)?);
    if bytes == 0 {
        return Ok(none());
    }
    let near = Block::take(backend, from, bytes + RESULT_BYTES)?;
    let far = Block::take(backend, to, bytes + RESULT_BYTES)?;
    let source = span(probe, from, &near, bytes);
    let target = span(probe, to, &far, bytes);
    source.write(PATTERN)?;
    source.wait()?;
    let copy = || {
        let (source, target) = ((from, near.address), (to, far.address));
        backend.copy_peer(source, target, bytes, StreamId::DEFAULT)?;
        backend.synchronize(from, StreamId::DEFAULT)
    };
    timed(probe, bytes, &|| poison(&target), &copy, &|| {
        missing(&target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among_rates(rate: u64, rates: &[u64]) -> Verdict {
        let speeds: Vec<_> = rates.iter().map(|rate| ("a".to_owned(), *rate)).collect();
        let did = Did {
            ops: 1,
            ..Did::default()
        };
        among(&speeds, "a", rate, did, String::new()).verdict
    }

    #[test]
    fn the_odd_one_of_many_fails_and_of_two_warns() {
        assert_eq!(among_rates(89, &[89, 100, 100]), Verdict::Fail);
        assert_eq!(among_rates(90, &[90, 100, 100]), Verdict::Pass);
        assert_eq!(among_rates(89, &[89, 100]), Verdict::Warn);
        assert_eq!(among_rates(100, &[89, 100]), Verdict::Pass);
        assert_eq!(among_rates(89, &[89]), Verdict::Skip);
    }

    #[test]
    fn an_interruption_is_no_result_of_the_device() {
        assert!(unless_interrupted(Err(Stop::Interrupted)).is_none());
        let error = BackendError::Unsupported {
            device: DeviceId::new(0).unwrap(),
            call: "cuMemcpy",
        };
        assert!(unless_interrupted(Err(Stop::Backend(error))).is_some());
    }

    #[test]
    fn figures_are_printed_in_tenths() {
        assert_eq!(gigabytes(396_950_000_000), "396.9");
    }
}
