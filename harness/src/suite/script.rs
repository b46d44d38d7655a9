//! A history as data: the machine, the faults and the operations, so that a failure can be
//! replayed, shrunk and kept.

use ds4_engine::alloc::{Lifetime, Request};
use ds4_engine::bytes::MIB;
use ds4_engine::device::{DeviceId, DeviceMask, MAX_DEVICES, StreamId};
use ds4_sim::{FaultPlan, InputError, Link, MAX_CAPACITY_BYTES, SimConfig, SimDevice};
use serde::{Deserialize, Serialize};

/// On less than this a device has no room for what a script ends with.
const LEAST_CAPACITY_BYTES: u64 = 8 * MIB;

/// A history that can be run again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a recorded check, as ds4 check prints it"
)]
pub struct Script {
    /// The version of this form; 1.
    pub schema: u32,
    /// What it shows, for people.
    #[serde(default)]
    pub about: String,
    /// Each device of the machine.
    pub devices: Vec<ScriptDevice>,
    /// Drives what faults draw.
    pub seed: u64,
    /// What fails while the operations run, as in a fault plan; see `sim/FAULTS.md`.
    pub faults: Vec<ScriptFault>,
    /// What is done, in this order.
    pub ops: Vec<Op>,
}

/// One device of a script's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a device with capacity_bytes")]
pub struct ScriptDevice {
    /// All memory, in bytes.
    pub capacity_bytes: u64,
    /// Whether it maps pages (2 MiB); otherwise its memory comes in slabs.
    pub pages: bool,
    /// Whether its neighbours reach it directly.
    pub peers: bool,
}

/// One fault, in the form of a fault plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a fault with at and kind")]
#[expect(missing_docs, reason = "sim/FAULTS.md describes the fields")]
pub struct ScriptFault {
    pub at: String,
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<u64>,
    pub skip: u64,
    pub count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// One operation. Blocks are named by their place among the live ones, counted around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[expect(
    missing_docs,
    reason = "the fields are those of the calls that the operations make"
)]
pub enum Op {
    /// Ask for memory.
    Alloc {
        mask: u32,
        bytes: u64,
        align: u64,
        stream: u32,
        long: bool,
    },
    /// Free a live block.
    Free { block: u64 },
    /// Free a block a second time, by the handle of the last one freed.
    FreeAgain,
    /// Use a live block on a further stream of its device.
    Use { block: u64, stream: u32 },
    /// Copy from one live block to another.
    Copy { from: u64, to: u64, bytes: u64 },
    /// Make a stream on a device.
    Stream { device: u64 },
    /// Give unused memory back to the driver.
    Trim,
    /// Wait for a device.
    Sync { device: u64 },
    /// Another process takes memory of a device.
    Take { device: u64, bytes: u64 },
    /// That process gives it back.
    Give { device: u64 },
    /// Ask again for what was refused last, on any device.
    Relax,
}

impl Op {
    /// The request of an allocation.
    pub(super) fn request(self) -> Option<Request> {
        let Self::Alloc {
            mask,
            bytes,
            align,
            stream,
            long,
        } = self
        else {
            return None;
        };
        Some(Request {
            mask: DeviceMask(mask),
            align_bytes: align,
            stream: StreamId(stream),
            lifetime: if long {
                Lifetime::Long
            } else {
                Lifetime::Transient
            },
            ..Request::new(bytes)
        })
    }
}

#[derive(Serialize)]
struct Plan<'a> {
    seed: u64,
    faults: &'a [ScriptFault],
}

impl Script {
    /// Reads a script; `file` is what errors call it.
    ///
    /// # Errors
    /// A sentence with the place of what is wrong.
    pub fn from_json(json: &[u8], file: &str) -> Result<Self, String> {
        let script: Self = serde_json::from_slice(json)
            .map_err(|error| format!("{file}: {error}; see golden/regressions for the form"))?;
        if script.schema != 1 {
            return Err(format!(
                "{file}: schema {} is not known; this version reads 1",
                script.schema
            ));
        }
        script.check(file)?;
        Ok(script)
    }

    /// Refuses a machine or faults that no simulator takes.
    fn check(&self, file: &str) -> Result<(), String> {
        let count = self.devices.len();
        if !(1..=MAX_DEVICES).contains(&count) {
            return Err(format!(
                "{file}: devices: there are {count}; write 1 to {MAX_DEVICES}"
            ));
        }
        for (index, device) in self.devices.iter().enumerate() {
            let capacity = device.capacity_bytes;
            if !(LEAST_CAPACITY_BYTES..=MAX_CAPACITY_BYTES).contains(&capacity) {
                return Err(format!(
                    "{file}: devices[{index}].capacity_bytes: {capacity} is out of range; write \
                     {LEAST_CAPACITY_BYTES} to {MAX_CAPACITY_BYTES}"
                ));
            }
        }
        self.config()
            .validate()
            .map_err(|error| format!("{file}: {error}"))?;
        let named = |error: InputError| {
            let file = file.to_owned();
            InputError { file, ..error }.to_string()
        };
        self.plan()
            .map_err(named)?
            .check_devices(count)
            .map_err(named)
    }

    /// The machine that it runs on.
    pub(super) fn config(&self) -> SimConfig {
        let devices = self.devices.iter().map(|device| SimDevice {
            page_bytes: device.pages.then_some(2 * MIB),
            granularity_bytes: 64 << 10,
            ..SimDevice::new(device.capacity_bytes)
        });
        let mut config = SimConfig::new("script", devices.collect());
        let ids = || (0..self.devices.len()).filter_map(DeviceId::new);
        for (to, device) in ids().zip(&self.devices) {
            for from in ids().filter(|from| *from != to && !device.peers) {
                config.set_link(from, to, Link::absent());
            }
        }
        config
    }

    /// The script as a file holds it.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Numbers, texts and lists of them always have a JSON form.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub(super) fn plan(&self) -> Result<FaultPlan, InputError> {
        let plan = Plan {
            seed: self.seed,
            faults: &self.faults,
        };
        let json = serde_json::to_vec(&plan).unwrap_or_default();
        FaultPlan::from_json(&json, "the script's faults")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(devices: &str, faults: &str) -> String {
        let json = format!(
            "{{\"schema\":1,\"devices\":{devices},\"seed\":1,\"faults\":{faults},\"ops\":[]}}"
        );
        Script::from_json(json.as_bytes(), "s.json").unwrap_err()
    }

    #[test]
    fn a_machine_that_cannot_be_is_refused_with_file_and_field() {
        let device =
            |bytes: u64| format!("{{\"capacity_bytes\":{bytes},\"pages\":true,\"peers\":true}}");
        assert_eq!(
            refusal("[]", "[]"),
            "s.json: devices: there are 0; write 1 to 32"
        );
        let many = vec![device(1 << 30); 33].join(",");
        assert!(refusal(&format!("[{many}]"), "[]").contains("devices: there are 33"));
        for bytes in [0, 1, (8 << 20) - 1, (4 << 40) + 1, u64::MAX] {
            let text = refusal(&format!("[{},{}]", device(1 << 30), device(bytes)), "[]");
            assert!(
                text.starts_with("s.json: devices[1].capacity_bytes: "),
                "{text}"
            );
        }
        let fault = r#"[{"at":"alloc","kind":"nope","skip":0,"count":1}]"#;
        let text = refusal(&format!("[{}]", device(1 << 30)), fault);
        assert!(text.starts_with("s.json:"), "{text}");
        let far = r#"[{"at":"alloc","kind":"oom","device":3,"skip":0,"count":1}]"#;
        let text = refusal(&format!("[{}]", device(1 << 30)), far);
        assert!(text.starts_with("s.json:"), "{text}");
    }
}
