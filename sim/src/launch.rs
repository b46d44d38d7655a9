//! Kernels on simulated devices: the CPU references, run on simulated memory in stream order.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use ds4_engine::backend::BackendError;
use ds4_engine::device::{DeviceId, DeviceMask, PeerAccess, StreamId};
use ds4_kernels::{Launch, Tally, add_f32, checksum};

use crate::backend::BROKEN_BYTES;
use crate::call::Call;
use crate::cost;
use crate::device::{DeviceState, Refused};
use crate::gate::Gate;
use crate::machine::{COPY_PART_BYTES, Effects, SimBackend};
use crate::space::device_of;

const WORD_BYTES: u64 = 8;
/// What gates load and store at a time.
const GROUP_BYTES: u64 = 16;
const CALL: Call = Call::Launch;

/// Memory that a kernel touches, at most two ranges for each launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) align_bytes: u64,
    pub(crate) writes: bool,
}

/// A range that was checked, with the device that has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    owner: DeviceId,
    address: u64,
    bytes: u64,
    writes: bool,
    /// How many of the first bytes are inverted on their way.
    broken_bytes: u64,
}

/// The devices of a launch, locked.
pub(crate) struct Memory<'a> {
    pub(crate) near: MutexGuard<'a, DeviceState>,
    far: BTreeMap<DeviceId, MutexGuard<'a, DeviceState>>,
}

impl Memory<'_> {
    fn of(&mut self, owner: DeviceId) -> &mut DeviceState {
        match self.far.get_mut(&owner) {
            Some(state) => state,
            None => &mut self.near,
        }
    }

    pub(crate) fn read(&mut self, place: &Place, offset: u64, data: &mut [u8]) {
        self.of(place.owner).read(place.address + offset, data);
        place.invert(offset, data);
    }

    pub(crate) fn write(&mut self, place: &Place, offset: u64, data: &mut [u8]) {
        place.invert(offset, data);
        self.of(place.owner).write(place.address + offset, data);
    }

    /// Replaces words of 8 bytes.
    fn change<const N: usize>(&mut self, place: &Place, change: impl FnOnce([u64; N]) -> [u64; N]) {
        let mut bytes = [[0; 8]; N];
        self.read(place, 0, bytes.as_flattened_mut());
        let mut bytes = change(bytes.map(u64::from_le_bytes)).map(u64::to_le_bytes);
        self.write(place, 0, bytes.as_flattened_mut());
    }
}

impl Place {
    fn invert(&self, offset: u64, data: &mut [u8]) {
        let broken = self.broken_bytes.saturating_sub(offset);
        let broken = usize::try_from(broken).unwrap_or(usize::MAX);
        data.iter_mut().take(broken).for_each(|byte| *byte = !*byte);
    }
}

impl SimBackend {
    /// Runs a kernel to its end; a gate only begins, and goes on with its peer.
    pub(crate) fn run_kernel(
        &self,
        device: DeviceId,
        stream: StreamId,
        launch: &Launch,
    ) -> Result<Option<Gate>, BackendError> {
        let ranges = ranges(launch);
        let mut memory = self.memory_of(device, &ranges)?;
        let bytes = launch.elements().saturating_mul(launch.element_bytes());
        let effects = self.enter(&mut memory.near, CALL, bytes)?;
        if launch.elements() == 0 {
            return Ok(None);
        }
        for state in memory.far.values() {
            self.check_alive(state, CALL)?;
        }
        let refuse = |refused| self.refuse(device, CALL, bytes, refused);
        let places = ranges
            .iter()
            .map(|range| self.place(&mut memory, range))
            .collect::<Result<Vec<Place>, Refused>>()
            .and_then(|places| separate(launch, &places).map(|()| places))
            .map_err(refuse)?;
        self.enqueue_kernel(&mut memory, stream, &places, effects)
            .map_err(refuse)?;
        if let Some(mut gate) = Gate::new(device, launch, effects.flip) {
            drop(memory);
            let nothing_to_do = self.begin_gate(&mut gate)?;
            return Ok((!nothing_to_do).then_some(gate));
        }
        execute(launch, &mut memory, &places);
        if let (Some(draw), Some(place)) = (effects.flip, places.iter().find(|place| place.writes))
        {
            Self::flip(memory.of(place.owner), place.address, place.bytes, draw);
        }
        Ok(None)
    }

    /// Locks the launching device and those whose memory is named, in the order of their indices.
    pub(crate) fn memory_of(
        &self,
        device: DeviceId,
        ranges: &[Range],
    ) -> Result<Memory<'_>, BackendError> {
        let named: DeviceMask = ranges
            .iter()
            .filter_map(|range| self.owner(range.address))
            .collect();
        let mut far = BTreeMap::new();
        for id in named.iter().filter(|id| *id < device) {
            far.insert(id, self.state(id, CALL.driver_name())?);
        }
        let near = self.state(device, CALL.driver_name())?;
        for id in named.iter().filter(|id| *id > device) {
            far.insert(id, self.state(id, CALL.driver_name())?);
        }
        Ok(Memory { near, far })
    }

    fn owner(&self, address: u64) -> Option<DeviceId> {
        device_of(address).filter(|owner| owner.index() < self.infos.len())
    }

    pub(crate) fn place(&self, memory: &mut Memory<'_>, range: &Range) -> Result<Place, Refused> {
        let Range {
            address,
            bytes,
            align_bytes,
            writes,
        } = *range;
        let device = memory.near.id;
        if !address.is_multiple_of(align_bytes) {
            return Err(Refused::Misuse(format!(
                "misaligned address: {address:#x} is no multiple of {align_bytes}"
            )));
        }
        let owner = self.owner(address).ok_or_else(|| {
            Refused::Misuse(format!("illegal address: {address:#x} is on no device"))
        })?;
        let mut broken_bytes = 0;
        if owner != device {
            let link = self.peer_link(device, owner).ok_or_else(|| {
                Refused::Misuse(format!(
                    "illegal address: {address:#x} is on {owner}, to which {device} has no path"
                ))
            })?;
            if link.access == PeerAccess::Broken {
                broken_bytes = BROKEN_BYTES;
            }
        }
        memory.of(owner).check(device, address, bytes)?;
        Ok(Place {
            owner,
            address,
            bytes,
            writes,
            broken_bytes,
        })
    }

    fn enqueue_kernel(
        &self,
        memory: &mut Memory<'_>,
        stream: StreamId,
        places: &[Place],
        effects: Effects,
    ) -> Result<(), Refused> {
        let Memory { near, far } = memory;
        let local: Vec<(u64, u64, bool)> = places
            .iter()
            .filter(|place| place.owner == near.id)
            .map(|place| (place.address, place.bytes, place.writes))
            .collect();
        let local_ns = cost::kernel_ns(local.iter().map(|(_, bytes, _)| bytes).sum());
        let duration_ns = places
            .iter()
            .filter_map(|place| {
                let link = self.peer_link(near.id, place.owner)?;
                (place.owner != near.id).then(|| cost::peer_copy_ns(&link, place.bytes))
            })
            .fold(local_ns, u64::max)
            .saturating_add(effects.delay_ns);
        self.enqueue(near, stream, duration_ns, CALL.name(), &local)?;
        let Some(queue) = near.streams.get_mut(stream) else {
            return Ok(());
        };
        for place in places {
            let Some(state) = far.get_mut(&place.owner) else {
                continue;
            };
            let range = (place.address, place.address + place.bytes);
            let (owner, writes) = (place.owner, place.writes);
            let race = state
                .accesses
                .note(owner, range, writes, queue, CALL.name());
            race.into_iter().for_each(|race| self.ledger.on_race(race));
            state.accesses.prune(self.now_ns());
        }
        Ok(())
    }
}

/// What a launch touches, in the order of its addresses.
pub(crate) fn ranges(launch: &Launch) -> Vec<Range> {
    let count = launch.elements();
    let elements = |address: u64, writes: bool| Range {
        address,
        // What does not fit into addresses reaches outside all memory, which the check says.
        bytes: count.saturating_mul(launch.element_bytes()),
        align_bytes: launch.element_bytes(),
        writes,
    };
    let floats_of = |address: u64, writes: bool| Range {
        align_bytes: GROUP_BYTES,
        ..elements(address, writes)
    };
    let words = |address: u64, words: u64| Range {
        address,
        bytes: words * WORD_BYTES,
        align_bytes: WORD_BYTES,
        writes: true,
    };
    match *launch {
        Launch::Fill { to, .. } | Launch::WritePattern { to, .. } => vec![elements(to, true)],
        Launch::CheckPattern { from, result, .. } => {
            vec![elements(from, false), words(result, 2)]
        }
        Launch::Checksum { from, sum, .. } => vec![elements(from, false), words(sum, 1)],
        Launch::AddF32 { sum, other, .. } => vec![elements(sum, true), elements(other, false)],
        // The link and the landings are read and written by both devices at once: flags order that.
        Launch::GatePackets { input, output, .. } | Launch::GateParts { input, output, .. } => {
            vec![floats_of(input, false), floats_of(output, true)]
        }
    }
}

/// Refuses ranges that share bytes where the result would depend on the order of threads.
fn separate(launch: &Launch, places: &[Place]) -> Result<(), Refused> {
    let [one, other] = places else {
        return Ok(());
    };
    let in_place = launch.is_gate() || matches!(launch, Launch::AddF32 { .. });
    let same = one.address == other.address && in_place;
    let (first, second) = if one.address < other.address {
        (one, other)
    } else {
        (other, one)
    };
    if same || first.address + first.bytes <= second.address {
        return Ok(());
    }
    Err(Refused::Misuse(format!(
        "overlapping ranges: {} bytes at {:#x} and {} at {:#x}",
        one.bytes, one.address, other.bytes, other.address
    )))
}

/// Runs the reference on ranges that were checked.
fn execute(launch: &Launch, memory: &mut Memory<'_>, places: &[Place]) {
    match (launch, places) {
        (Launch::Fill { bytes, value, .. }, [to]) => {
            memory.of(to.owner).fill(to.address, *bytes, *value);
            if to.broken_bytes > 0 {
                SimBackend::invert(memory.of(to.owner), to.address, *bytes);
            }
        }
        (
            Launch::WritePattern {
                first_position,
                pattern,
                ..
            },
            [to],
        ) => in_parts(to.bytes, |offset, part| {
            let mut words = vec![[0; 8]; part.len() / 8];
            pattern.write(&mut words, first_position.wrapping_add(offset / WORD_BYTES));
            memory.write(to, offset, words.as_flattened_mut());
        }),
        (
            Launch::CheckPattern {
                first_position,
                pattern,
                ..
            },
            [from, result],
        ) => {
            let mut found = Tally::CLEAN;
            in_parts(from.bytes, |offset, part| {
                memory.read(from, offset, part);
                let (words, _) = part.as_chunks();
                let position = first_position.wrapping_add(offset / WORD_BYTES);
                found = found.and(pattern.tally(words, position));
            });
            if found != Tally::CLEAN {
                memory.change(result, |[least_position, wrong_words]| {
                    let before = Tally {
                        least_position,
                        wrong_words,
                    };
                    let now = before.and(found);
                    [now.least_position, now.wrong_words]
                });
            }
        }
        (Launch::Checksum { first_position, .. }, [from, sum]) => {
            let mut added = 0_u64;
            in_parts(from.bytes, |offset, part| {
                memory.read(from, offset, part);
                added = added.wrapping_add(checksum(part, first_position.wrapping_add(offset)));
            });
            memory.change(sum, |[before]| [before.wrapping_add(added)]);
        }
        (Launch::AddF32 { .. }, [sum, other]) => in_parts(sum.bytes, |offset, part| {
            memory.read(sum, offset, part);
            let mut sums = floats(part);
            memory.read(other, offset, part);
            add_f32(&mut sums, &floats(part));
            let mut bytes: Vec<u8> = sums.into_iter().flat_map(f32::to_le_bytes).collect();
            memory.write(sum, offset, &mut bytes);
        }),
        _ => {}
    }
}

/// Calls `work` with the offset of each part and a buffer of the part's length.
fn in_parts(bytes: u64, mut work: impl FnMut(u64, &mut [u8])) {
    let mut buffer = vec![0; usize::try_from(bytes.min(COPY_PART_BYTES)).unwrap_or(0)];
    let mut offset = 0;
    while offset < bytes && !buffer.is_empty() {
        let rest = usize::try_from(bytes - offset).unwrap_or(usize::MAX);
        let length = rest.min(buffer.len());
        let (part, _) = buffer.split_at_mut(length);
        work(offset, part);
        offset += length as u64;
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (floats, _) = bytes.as_chunks();
    floats
        .iter()
        .map(|float| f32::from_le_bytes(*float))
        .collect()
}
