//! Random histories: a machine, faults and operations drawn from a seed.

use ds4_engine::bytes::MIB;

use super::rng::Rng;
use super::script::{Op, Script, ScriptDevice, ScriptFault};

/// Operations of one history.
const OPS: u64 = 160;
/// Streams that a history makes on a device, besides the default one.
pub(super) const STREAMS: u64 = 2;

/// A history drawn from a seed, on `count` devices.
pub(super) fn draw(seed: u64, index: u64, count: usize, with_faults: bool) -> Script {
    let mut rng = Rng::part(seed, index);
    let devices: Vec<ScriptDevice> = (0..count)
        .map(|_| ScriptDevice {
            capacity_bytes: (16 + 8 * rng.below(9)) * MIB,
            pages: rng.chance(60),
            peers: rng.chance(60),
        })
        .collect();
    let faults = if with_faults {
        draw_faults(&mut rng, count)
    } else {
        Vec::new()
    };
    let weights = draw_weights(&mut rng);
    let streams = (0..count as u64)
        .filter(|_| rng.chance(60))
        .collect::<Vec<_>>();
    let ops = streams
        .into_iter()
        .flat_map(|device| [Op::Stream { device }; 2])
        .chain((0..OPS).map(|_| draw_op(&mut rng, count as u64, &weights)))
        .collect();
    Script {
        schema: 1,
        about: String::new(),
        devices,
        seed: rng.next(),
        faults,
        ops,
    }
}

fn draw_faults(rng: &mut Rng, count: usize) -> Vec<ScriptFault> {
    const KINDS: [(&str, &str); 10] = [
        ("allocate", "oom"),
        ("create_page", "oom"),
        ("create_page", "oom_keep"),
        ("map", "fail"),
        ("unmap", "fail"),
        ("event", "fail"),
        ("any", "fail"),
        ("any", "take"),
        ("any", "lost"),
        ("copy", "fail"),
    ];
    (0..1 + rng.below(5))
        .map(|_| {
            let (at, kind) = KINDS
                .get(usize::try_from(rng.below(10)).unwrap_or(0))
                .copied()
                .unwrap_or(("any", "fail"));
            ScriptFault {
                at: at.to_owned(),
                kind: kind.to_owned(),
                // Losing every device would leave nothing to check.
                device: (kind == "lost" || rng.chance(50)).then(|| rng.below(count as u64)),
                skip: rng.below(24),
                count: 1 + rng.below(12),
                bytes: (kind == "take").then(|| rng.size(32 * MIB)),
            }
        })
        .collect()
}

/// How likely each kind of operation is in this history; some never happen in it.
fn draw_weights(rng: &mut Rng) -> [u64; 11] {
    let mut weights = [40, 30, 2, 6, 6, 2, 2, 2, 3, 3, 4];
    for weight in weights.iter_mut().skip(2) {
        if rng.chance(30) {
            *weight = 0;
        }
    }
    weights
}

fn draw_op(rng: &mut Rng, devices: u64, weights: &[u64; 11]) -> Op {
    let mut at = rng.below(weights.iter().sum());
    let kind = weights.iter().position(|weight| {
        let here = at < *weight;
        at = at.saturating_sub(*weight);
        here
    });
    let device = rng.below(devices);
    match kind.unwrap_or(0) {
        0 => draw_alloc(rng, devices),
        1 => Op::Free {
            block: rng.next() >> 32,
        },
        2 => Op::FreeAgain,
        3 => Op::Use {
            block: rng.next() >> 32,
            stream: small(rng.below(STREAMS + 1)),
        },
        4 => Op::Copy {
            from: rng.next() >> 32,
            to: rng.next() >> 32,
            bytes: rng.size(MIB),
        },
        5 => Op::Stream { device },
        6 => Op::Trim,
        7 => Op::Sync { device },
        8 => Op::Take {
            device,
            bytes: rng.size(64 * MIB),
        },
        9 => Op::Give { device },
        _ => Op::Relax,
    }
}

fn draw_alloc(rng: &mut Rng, devices: u64) -> Op {
    let mask = match rng.below(8) {
        0..=2 => 0,
        3..=4 => 1 << rng.below(devices),
        5..=6 => small(rng.next() & 0xFF),
        _ => 1 << (devices + rng.below(32 - devices)),
    };
    Op::Alloc {
        mask,
        bytes: if rng.chance(30) {
            rng.size(64 * MIB)
        } else {
            rng.size(4 * MIB)
        },
        align: if rng.chance(20) {
            1 << rng.below(22)
        } else {
            256
        },
        stream: if rng.chance(25) {
            small(rng.below(STREAMS + 1))
        } else {
            0
        },
        long: rng.chance(15),
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_survives_its_file() {
        let script = draw(7, 3, 3, true);
        assert_eq!(
            Script::from_json(script.to_json().as_bytes(), "x"),
            Ok(script)
        );
    }

    #[test]
    fn equal_seeds_draw_equal_histories_and_others_differ() {
        assert_eq!(draw(7, 3, 3, true), draw(7, 3, 3, true));
        assert_ne!(draw(7, 3, 3, true).ops, draw(7, 4, 3, true).ops);
    }
}
