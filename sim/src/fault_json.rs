//! The JSON form of fault plans: strict, and every refusal says where and what to write instead.

use ds4_engine::bytes::MAX_BYTES;
use ds4_engine::device::{DeviceId, DeviceMask, MAX_DEVICES};
use serde::Deserialize;

use crate::call::{Call, CallSet};
use crate::fault::{Fault, FaultKind, FaultPlan};
use crate::input::{InputError, in_words, line_and_column, one_line};

const FORM: &str = "see sim/FAULTS.md for the form";
const MAX_FAULTS: usize = 4096;
const MAX_DELAY_NS: u64 = 1_000_000_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with a list named faults")]
struct RawPlan {
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    swarm: bool,
    faults: Vec<RawFault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a fault: an object with at and kind")]
struct RawFault {
    at: String,
    kind: String,
    device: Option<u64>,
    #[serde(default)]
    r#if: RawCondition,
    prob: Option<f64>,
    #[serde(default)]
    skip: u64,
    #[serde(default)]
    count: RawCount,
    ns: Option<u64>,
    bytes: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a condition: an object with min_bytes or mask"
)]
struct RawCondition {
    #[serde(default)]
    min_bytes: u64,
    mask: Option<TextOrNumber>,
}

/// A number, or a text whose meaning depends on the field.
enum TextOrNumber {
    Text(String),
    Number(u64),
}

struct RawCount(TextOrNumber);

impl Default for RawCount {
    fn default() -> Self {
        Self(TextOrNumber::Number(1))
    }
}

impl<'de> Deserialize<'de> for RawCount {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        TextOrNumber::deserialize(from).map(Self)
    }
}

impl<'de> Deserialize<'de> for TextOrNumber {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = TextOrNumber;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number of 0 or more, or a text")
            }

            fn visit_u64<E>(self, number: u64) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<TextOrNumber, E> {
                Ok(TextOrNumber::Text(text.to_owned()))
            }
        }
        from.deserialize_any(Visitor)
    }
}

/// What is wrong with a field of a fault: field, problem, remedy.
type FieldError = (&'static str, String, String);

fn wrong<T>(
    field: &'static str,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Result<T, FieldError> {
    Err((field, problem.into(), remedy.into()))
}

pub(crate) fn parse(json: &[u8], file: &str) -> Result<FaultPlan, InputError> {
    let text = std::str::from_utf8(json).map_err(|error| {
        let valid = json.get(..error.valid_up_to()).unwrap_or_default();
        let (line, column) = line_and_column(&String::from_utf8_lossy(valid), valid.len());
        let place = format!("{line}:{column}");
        InputError::new(
            file,
            place,
            "the text is not UTF-8",
            "save the plan as UTF-8",
        )
    })?;
    let raw: RawPlan = serde_json::from_str(text).map_err(|error| {
        let place = format!("{}:{}", error.line(), error.column());
        let message = one_line(&error.to_string());
        // serde_json appends the place, which stands in front already.
        let message = message.split(" at line ").next().unwrap_or_default();
        InputError::new(file, place, in_words(message), FORM)
    })?;
    if raw.faults.len() > MAX_FAULTS {
        return Err(InputError::new(
            file,
            "faults",
            format!("there are {} faults", raw.faults.len()),
            format!("keep at most {MAX_FAULTS}"),
        ));
    }
    let faults = raw
        .faults
        .iter()
        .enumerate()
        .map(|(index, raw)| {
            fault(raw).map_err(|(field, problem, remedy)| {
                InputError::new(file, format!("faults[{index}].{field}"), problem, remedy)
            })
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(FaultPlan {
        seed: raw.seed,
        swarm: raw.swarm,
        faults,
        file: file.to_owned(),
    })
}

fn fault(raw: &RawFault) -> Result<Fault, FieldError> {
    let kind = kind(raw)?;
    let calls = calls(&raw.at)?.and(kind.applies_to());
    if calls.is_empty() {
        return wrong(
            "kind",
            format!("'{}' does not apply to '{}'", raw.kind, raw.at),
            "the last table of sim/FAULTS.md says what applies where",
        );
    }
    Ok(Fault {
        calls,
        device: raw.device.map(device).transpose()?,
        devices: raw.r#if.mask.as_ref().map_or(Ok(DeviceMask::ALL), mask)?,
        min_bytes: raw.r#if.min_bytes,
        chance: raw.prob.map(chance).transpose()?.flatten(),
        skip: raw.skip,
        count: count(&raw.count)?,
        kind,
    })
}

fn calls(at: &str) -> Result<CallSet, FieldError> {
    use Call as C;
    let group = match at {
        "any" => Some(CallSet::ALL),
        "alloc" => Some(CallSet::of(&[C::Allocate, C::CreatePage])),
        "free" => Some(CallSet::of(&[C::Free, C::DestroyPage])),
        "stream" => Some(CallSet::of(&[
            C::CreateStream,
            C::DestroyStream,
            C::Synchronize,
        ])),
        "event" => Some(CallSet::of(&[
            C::RecordEvent,
            C::EventDone,
            C::WaitEvent,
            C::StreamWaitEvent,
            C::DestroyEvent,
        ])),
        "copy" => Some(CallSet::of(&[C::Write, C::Read, C::CopyLocal, C::CopyPeer])),
        name => C::ALL
            .into_iter()
            .find(|call| call.name() == name)
            .map(C::bit),
    };
    group.map_or_else(
        || {
            wrong(
                "at",
                format!("there is no call '{}'", shortened(at)),
                "write any, alloc, free, map, unmap, reserve, copy, event, stream or a method's \
                 name from sim/FAULTS.md",
            )
        },
        Ok,
    )
}

fn kind(raw: &RawFault) -> Result<FaultKind, FieldError> {
    let kind = match raw.kind.as_str() {
        "oom" => FaultKind::Oom,
        "oom_keep" => FaultKind::OomKeep,
        "lost" => FaultKind::Lost,
        "sticky" => FaultKind::Sticky,
        "fail" => FaultKind::Fail,
        "bit_flip" => FaultKind::BitFlip,
        "delay" => match raw.ns {
            Some(ns) if ns <= MAX_DELAY_NS => FaultKind::Delay { ns },
            Some(ns) => {
                let problem = format!("the delay of {ns} ns is too long");
                return wrong("ns", problem, format!("write at most {MAX_DELAY_NS}"));
            }
            None => {
                return wrong(
                    "ns",
                    "a delay has no length",
                    "add \"ns\": 1000, for example",
                );
            }
        },
        "take" => match raw.bytes {
            Some(bytes) if bytes <= MAX_BYTES => FaultKind::Take { bytes },
            Some(_) => return wrong("bytes", "the size is too large", "write less than 2^63"),
            None => return wrong("bytes", "take does not say how much", "add \"bytes\": N"),
        },
        "release" => FaultKind::Release { bytes: raw.bytes },
        other => {
            return wrong(
                "kind",
                format!("there is no kind '{}'", shortened(other)),
                "write oom, oom_keep, fail, sticky, lost, bit_flip, delay, take or release",
            );
        }
    };
    if raw.ns.is_some() && !matches!(kind, FaultKind::Delay { .. }) {
        return wrong("ns", format!("'{}' takes no ns", raw.kind), "remove it");
    }
    let about_bytes = matches!(kind, FaultKind::Take { .. } | FaultKind::Release { .. });
    if raw.bytes.is_some() && !about_bytes {
        return wrong(
            "bytes",
            format!("'{}' takes no bytes", raw.kind),
            "remove it",
        );
    }
    Ok(kind)
}

fn device(number: u64) -> Result<DeviceId, FieldError> {
    let device = usize::try_from(number).ok().and_then(DeviceId::new);
    device.map_or_else(
        || {
            let remedy = format!("write 0 to {}", MAX_DEVICES - 1);
            wrong("device", format!("there is no device {number}"), remedy)
        },
        Ok,
    )
}

fn mask(raw: &TextOrNumber) -> Result<DeviceMask, FieldError> {
    let number = match raw {
        TextOrNumber::Number(number) => u32::try_from(*number).ok(),
        TextOrNumber::Text(text) => match (text.strip_prefix("0b"), text.strip_prefix("0x")) {
            (Some(digits), _) => unsigned(digits, 2),
            (_, Some(digits)) => unsigned(digits, 16),
            _ => unsigned(text, 10),
        },
    };
    match number {
        Some(0) => wrong(
            "if.mask",
            "the mask is empty",
            "set a bit, or leave the mask out",
        ),
        Some(bits) => Ok(DeviceMask(bits)),
        None => wrong(
            "if.mask",
            "the mask is not a number of 32 bits",
            "write for example \"0b0100\" for device 2",
        ),
    }
}

/// Digits alone: `from_str_radix` would also take a sign.
fn unsigned(digits: &str, radix: u32) -> Option<u32> {
    let plain = digits.chars().all(|digit| digit.is_digit(radix));
    u32::from_str_radix(digits, radix).ok().filter(|_| plain)
}

/// The draws below which a fault of probability `prob` fires; `None` is always.
fn chance(prob: f64) -> Result<Option<u64>, FieldError> {
    if !(0.0..=1.0).contains(&prob) {
        return wrong("prob", format!("{prob} is no probability"), "write 0 to 1");
    }
    if prob >= 1.0 {
        return Ok(None);
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least 0 and below 2^64, checked above"
    )]
    let below = (prob * 18_446_744_073_709_551_616.0) as u64;
    Ok(Some(below))
}

fn count(raw: &RawCount) -> Result<Option<u64>, FieldError> {
    match &raw.0 {
        TextOrNumber::Number(0) => wrong(
            "count",
            "a count of 0 never fires",
            "write 1 or more, or \"all\" for a persistent fault",
        ),
        TextOrNumber::Number(count) => Ok(Some(*count)),
        TextOrNumber::Text(text) if text == "all" => Ok(None),
        TextOrNumber::Text(text) => wrong(
            "count",
            format!("'{}' is no count", shortened(text)),
            "write a whole number of 1 or more, or \"all\"",
        ),
    }
}

/// A name from the file, short enough for a sentence and free of line ends.
fn shortened(text: &str) -> String {
    text.chars()
        .take(40)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}
