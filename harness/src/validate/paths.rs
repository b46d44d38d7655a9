//! How devices reach each other, judged by bytes that were sent.

use ds4_engine::device::PeerAccess;
use serde_json::json;

use super::run::{Finding, Group, Probe};
use super::{CheckId, Level};

const PEERS: CheckId = CheckId {
    name: "peer-access",
    code: "DV-0014",
    level: Level::Look,
};
const DEVICES: CheckId = CheckId {
    name: "device-count",
    code: "DV-0015",
    level: Level::Look,
};

pub(super) const GROUPS: &[Group] = &[
    Group {
        checks: &[PEERS],
        body: peers,
    },
    Group {
        checks: &[DEVICES],
        body: count,
    },
];

fn peers(probe: &Probe<'_>) {
    let mut any = false;
    for (from, to) in probe.pairs() {
        if probe.stopped() {
            return;
        }
        any = true;
        let timer = probe.timer();
        let access = probe.backend().peer_access(from, to);
        let did = timer.did(0, 1);
        let finding = match access {
            Err(error) => Finding::of_error(&error),
            Ok(access) => {
                let (finding, word) = match access {
                    PeerAccess::Direct => (Finding::pass(did, "direct, bytes arrive"), "direct"),
                    PeerAccess::Absent => {
                        (Finding::skip("the driver offers no direct path"), "absent")
                    }
                    PeerAccess::Bounce => {
                        let why = "through host memory, as DS4_FORCE_BOUNCE asks";
                        (Finding::warn(did, why), "bounce")
                    }
                    PeerAccess::Broken => {
                        let why = "broken: the driver offers a path that delivers wrong bytes";
                        let hint = "an IOMMU or ACS setting, or a broken bridge; ds4 goes through the host";
                        (Finding::fail(did, why).hint(hint), "broken")
                    }
                };
                finding.measured(json!({ "access": word }))
            }
        };
        probe.tell(&PEERS, Some(format!("{from}->{to}")), finding);
    }
    if !any {
        probe.tell(&PEERS, None, Finding::skip("there is one device only"));
    }
}

fn count(probe: &Probe<'_>) {
    let count = probe.devices().count() as u64;
    let did = super::Did {
        ops: 1,
        ..Default::default()
    };
    let detail = format!("{count} used");
    let name = probe.devices().next().map_or("", |id| probe.name(id));
    let finding = match probe.subject.expectations.of("devices", name) {
        Some(least) => {
            let wish = format!("at least {}", least.at_least);
            let finding = if count < least.at_least {
                Finding::new(least.otherwise, did, detail).hint("see visible-devices")
            } else {
                Finding::pass(did, detail)
            };
            finding.expected(wish, &least.source)
        }
        None => Finding::skip(&format!("{detail}; no expectation")),
    };
    probe.tell(
        &DEVICES,
        None,
        finding.measured(json!({ "devices": count })),
    );
}
