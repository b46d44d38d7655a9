//! Contexts and memory: taken, filled, checked and given back.

use ds4_engine::backend::BackendError;
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceId, StreamId};
use ds4_kernels::Pattern;
use serde_json::json;

use super::field::{Block, Field, Span, WORD_BYTES, Wrong, piece_bytes};
use super::run::{Finding, Group, Probe, Stop, Timer};
use super::{CheckId, Level};

const fn test(name: &'static str, code: &'static str) -> CheckId {
    CheckId {
        name,
        code,
        level: Level::Test,
    }
}

const CONTEXT: CheckId = test("context", "DV-1001");
const LADDER: CheckId = test("allocation-ladder", "DV-1002");
const OWN_ADDRESS: CheckId = test("memory-own-address", "DV-1003");
const INVERSION: CheckId = test("memory-moving-inversion", "DV-1004");
const RANDOM: CheckId = test("memory-random", "DV-1005");

pub(super) const GROUPS: &[Group] = &[
    Group {
        checks: &[CONTEXT],
        body: |probe| probe.each(&CONTEXT, |id| Ok(context(probe, id))),
    },
    Group {
        checks: &[LADDER],
        body: |probe| probe.each(&LADDER, |id| ladder(probe, id)),
    },
    Group {
        checks: &[OWN_ADDRESS],
        body: |probe| {
            probe.each(&OWN_ADDRESS, |id| memory(probe, id, &[Pattern::OwnAddress]));
        },
    },
    Group {
        checks: &[INVERSION],
        body: |probe| {
            let word = 0x5555_5555_5555_5555;
            let patterns = [word, !word].map(|word| Pattern::MovingInversion { word });
            probe.each(&INVERSION, |id| memory(probe, id, &patterns));
        },
    },
    Group {
        checks: &[RANDOM],
        body: |probe| {
            let pattern = Pattern::Random { seed: 0xD54 };
            probe.each(&RANDOM, |id| memory(probe, id, &[pattern]));
        },
    },
];

/// Whether the check of a code writes and reads patterns all over a device's memory.
pub(super) fn tests_memory(code: &str) -> bool {
    [OWN_ADDRESS, INVERSION, RANDOM]
        .iter()
        .any(|check| check.code == code)
}

/// A stream, an event, memory, a fill and a look at it: what every program does first.
fn context(probe: &Probe<'_>, id: DeviceId) -> Finding {
    const BYTES: usize = 1 << 16;
    let timer = probe.timer();
    let backend = probe.backend();
    let attempt = || -> Result<bool, BackendError> {
        let stream = backend.create_stream(id)?;
        let block = Block::take(backend, id, BYTES as u64)?;
        backend.fill(id, block.address, BYTES as u64, 0x3C, stream)?;
        let event = backend.record_event(id, stream)?;
        backend.wait_event(id, event)?;
        backend.destroy_event(id, event)?;
        let mut seen = vec![0; BYTES];
        backend.read(id, block.address, &mut seen)?;
        backend.destroy_stream(id, stream)?;
        block.give_back()?;
        Ok(seen.iter().all(|byte| *byte == 0x3C))
    };
    let worked = attempt();
    let did = timer.did(2 * BYTES as u64, 8);
    match worked {
        Ok(true) => Finding::pass(did, "stream, event, memory, fill and copy work"),
        Ok(false) => Finding::fail(did, "bytes that were filled are not there"),
        Err(error) => Finding::fail(did, error.to_string())
            .hint("no program can work on this device; look at the kernel log"),
    }
}

/// Takes and gives back: single blocks of growing size, then all that may be taken at once.
fn ladder(probe: &Probe<'_>, id: DeviceId) -> Result<Finding, Stop> {
    let quota = probe.quota(id)?;
    let granule = probe
        .info(id)
        .map_or(1, |info| info.granularity_bytes)
        .max(1);
    if quota < granule {
        return Ok(Finding::skip("less than a granule may be taken"));
    }
    let timer = probe.timer();
    let mut climb = Climb::default();
    let mut lost = [0; 2];
    for lost in &mut lost {
        let before = probe.backend().memory_info(id)?.free_bytes;
        if let Err(refused) = climb.up(probe, id, quota, granule) {
            let Refused { error, taken, free } = refused?;
            let detail = format!(
                "{error} although {} of {} were free and {} taken",
                format_bytes(free),
                format_bytes(free.saturating_add(taken)),
                format_bytes(taken)
            );
            return Ok(Finding::fail(climb.did(&timer), detail));
        }
        let after = probe.backend().memory_info(id)?.free_bytes;
        *lost = before.saturating_sub(after);
        if *lost == 0 {
            break;
        }
    }
    let did = climb.did(&timer);
    let taken = format_bytes(climb.most);
    let measured = json!({ "most_bytes": climb.most, "lost_bytes": lost[1] });
    Ok(match lost {
        // What a first climb keeps may be the driver's, or another process's.
        [0, _] => Finding::pass(did, format!("{taken} taken and given back")),
        [once, 0] => Finding::warn(did, format!(
            "{taken} taken; {} did not come back once: the driver keeps it, or another process took it",
            format_bytes(once)
        )),
        [_, again] => Finding::fail(did, format!(
            "{taken} taken; each time memory does not come back, {} the second time",
            format_bytes(again)
        ))
        .hint("a leak of the driver, or another process that grows; see other-processes"),
    }
    .measured(measured))
}

struct Refused {
    error: BackendError,
    taken: u64,
    free: u64,
}

#[derive(Default)]
struct Climb {
    bytes: u64,
    ops: u64,
    most: u64,
}

impl Climb {
    fn did(&self, timer: &Timer) -> super::Did {
        timer.did(self.bytes, self.ops)
    }

    fn up(
        &mut self,
        probe: &Probe<'_>,
        id: DeviceId,
        quota: u64,
        granule: u64,
    ) -> Result<(), Result<Refused, Stop>> {
        const STEP: u64 = 8;
        let backend = probe.backend();
        let mut rung = granule;
        while rung <= quota {
            let block = self.take(probe, id, rung, 0)?;
            block.give_back().map_err(|error| Err(error.into()))?;
            rung = rung.saturating_mul(STEP);
        }
        let piece = piece_bytes(quota, granule);
        let mut held = Vec::new();
        let mut taken = 0;
        while taken + piece <= quota {
            if probe.stopped() {
                return Err(Err(Stop::Interrupted));
            }
            held.push(self.take(probe, id, piece, taken)?);
            taken += piece;
        }
        self.most = self.most.max(taken);
        for block in held {
            block.give_back().map_err(|error| Err(error.into()))?;
        }
        backend
            .synchronize(id, StreamId::DEFAULT)
            .map_err(|error| Err(error.into()))
    }

    fn take<'a>(
        &mut self,
        probe: &Probe<'a>,
        id: DeviceId,
        bytes: u64,
        taken: u64,
    ) -> Result<Block<'a>, Result<Refused, Stop>> {
        let backend: &'a dyn ds4_engine::backend::Backend = &**probe.subject.target.backend();
        self.ops += 2;
        self.bytes = self.bytes.saturating_add(bytes);
        Block::take(backend, id, bytes).map_err(|error| match error {
            BackendError::OutOfMemory { .. } => {
                backend
                    .memory_info(id)
                    .map_err(Stop::from)
                    .map(|memory| Refused {
                        error,
                        taken,
                        free: memory.free_bytes,
                    })
            }
            BackendError::DeviceLost { .. }
            | BackendError::Unsupported { .. }
            | BackendError::Driver { .. } => Err(error.into()),
        })
    }
}

/// Writes each pattern over all memory and checks it, upwards; every second one downwards.
fn memory(probe: &Probe<'_>, id: DeviceId, patterns: &[Pattern]) -> Result<Finding, Stop> {
    let quota = probe.quota(id)?;
    let granule = probe
        .info(id)
        .map_or(1, |info| info.granularity_bytes)
        .max(1);
    if quota < 2 * granule {
        return Ok(Finding::skip("less than two granules may be taken"));
    }
    let timer = probe.timer();
    let field = Field::take(probe.backend(), id, quota, granule)?;
    let (mut done, mut ops, mut checked_ns) = (0, 0, 0);
    for (number, pattern) in patterns.iter().enumerate() {
        if probe.stopped() {
            return Err(Stop::Interrupted);
        }
        let down = number % 2 == 1;
        let in_order = |work: &dyn Fn(&Span<'_>) -> Result<(), BackendError>| {
            if down {
                field.spans().rev().try_for_each(|span| work(&span))
            } else {
                field.spans().try_for_each(|span| work(&span))
            }
        };
        in_order(&|span| span.clear())?;
        in_order(&|span| span.write(*pattern))?;
        field.wait()?;
        let checking = probe.timer();
        in_order(&|span| span.start_check(*pattern))?;
        field.wait()?;
        checked_ns += checking.ns();
        done += 2 * field.bytes();
        ops += 2 * field.spans().count() as u64;
        if let Some(wrong) = field.verdict(*pattern)? {
            let detail = format!(
                "{} ({:?} over {})",
                wrong.sentence(),
                pattern,
                format_bytes(field.bytes())
            );
            return Ok(Finding::fail(timer.did(done, ops), detail)
                .measured(wrong_value(&wrong))
                .hint("the memory or the path to it loses bits: take the device out of use"));
        }
        if let Some(missed) = planted(&field, *pattern)? {
            return Ok(Finding::error(&missed));
        }
    }
    let checked = field.bytes() * patterns.len() as u64;
    let speed = bytes_per_second(checked, checked_ns);
    let detail = format!(
        "{} of {} hold what was written{}, checked at {} GB/s",
        format_bytes(field.bytes()),
        format_bytes(probe.backend().memory_info(id)?.total_bytes),
        if patterns.len() > 1 {
            ", both ways"
        } else {
            ""
        },
        speed / 1_000_000_000
    );
    Ok(Finding::pass(timer.did(done, ops), detail)
        .measured(json!({ "field_bytes": field.bytes(), "checked_bytes_per_second": speed })))
}

/// Spoils the last word and looks whether it is found, so that a check which sees nothing cannot
/// pass.
fn planted(field: &Field<'_>, pattern: Pattern) -> Result<Option<String>, Stop> {
    let Some(span) = field.spans().next_back() else {
        return Ok(Some("there is no memory to check".to_owned()));
    };
    let last = span.words - 1;
    let position = span.first_position + last;
    let address = ds4_engine::device::DeviceAddress(span.address.0 + last * WORD_BYTES);
    let wrong = !pattern.word(position);
    span.backend
        .write(span.device, address, &wrong.to_le_bytes())?;
    let found = span.check(pattern)?;
    let right = matches!(found, Some(Wrong { position: at, words: 1, found, .. })
        if at == position && found == wrong);
    Ok((!right)
        .then(|| format!("a wrong word planted at position {position} was reported as {found:?}")))
}

pub(super) fn wrong_value(wrong: &Wrong) -> serde_json::Value {
    json!({
        "position": wrong.position,
        "address": format!("{:#x}", wrong.address.0),
        "expected": format!("{:#018x}", wrong.expected),
        "found": format!("{:#018x}", wrong.found),
        "wrong_words": wrong.words,
        "report_damaged": wrong.damage.is_some(),
    })
}

/// Rounded down; a time of zero counts as a nanosecond.
pub(super) fn bytes_per_second(bytes: u64, ns: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}
