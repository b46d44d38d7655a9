//! Gate kernels: the one kind of work that waits for work of another device.

use std::time::{Duration, Instant};

use ds4_engine::backend::BackendError;
use ds4_engine::device::DeviceId;
use ds4_kernels::gate::{
    ABORT_OFFSET_BYTES, FAILURE_OFFSET_BYTES, GateFailure, GateForm, GateLink, next_sequence,
};
use ds4_kernels::{Launch, add_f32};

use crate::call::Call;
use crate::launch::{Memory, Place, Range, floats};
use crate::machine::SimBackend;

const CALL: Call = Call::Launch;

/// A gate kernel that runs.
#[derive(Debug)]
pub(crate) struct Gate {
    device: DeviceId,
    link_address: u64,
    link: GateLink,
    form: GateForm,
    input: u64,
    output: u64,
    bytes: u64,
    /// Gates that it has still to pass, the present one included.
    left: u64,
    sequence: u32,
    pushed: bool,
    /// Since when the present gate waits for the peer.
    since: Option<Instant>,
    /// The draw of a fault that flips a bit of the sum.
    flip: Option<u64>,
}

impl Gate {
    /// What a launch says; `None` for other kernels.
    pub(crate) fn new(device: DeviceId, launch: &Launch, flip: Option<u64>) -> Option<Self> {
        let (link_address, input, output, count, left, form) = match *launch {
            Launch::GatePackets {
                link,
                input,
                output,
                count,
                gates,
            } => (link, input, output, count, gates, GateForm::Packets),
            Launch::GateParts {
                link,
                input,
                output,
                count,
                part_bytes,
            } => (
                link,
                input,
                output,
                count,
                1,
                GateForm::Parts { part_bytes },
            ),
            Launch::Fill { .. }
            | Launch::WritePattern { .. }
            | Launch::CheckPattern { .. }
            | Launch::Checksum { .. }
            | Launch::AddF32 { .. } => return None,
        };
        Some(Self {
            device,
            link_address,
            link: GateLink {
                own: 0,
                peer: 0,
                rank: 0,
                deadline_ns: 0,
            },
            form,
            input,
            output,
            bytes: count.saturating_mul(launch.element_bytes()),
            left,
            sequence: 0,
            pushed: false,
            since: None,
            flip,
        })
    }
}

impl Gate {
    /// How far it has come.
    pub(crate) fn stage(&self) -> (u64, bool) {
        (self.left, self.pushed)
    }
}

impl SimBackend {
    /// Reads the link, as the kernel does when it begins. True if there is nothing to do, since an
    /// earlier gate of the link failed.
    pub(crate) fn begin_gate(&self, gate: &mut Gate) -> Result<bool, BackendError> {
        let head = self.gate_read(gate, gate.link_address, 128)?;
        let head = head.first_chunk().copied().unwrap_or([0; 128]);
        gate.link = GateLink::from_bytes(&head);
        let place = gate.form.sequences().next().unwrap_or(0);
        let last = self.gate_read(gate, gate.link_address + place, 4)?;
        let last = last.first_chunk().copied().unwrap_or([0; 4]);
        gate.sequence = next_sequence(u32::from_le_bytes(last));
        Ok(gate.left == 0 || GateFailure::from_bytes(&head).is_some())
    }

    /// Goes on with a kernel as far as its peer lets it. True at its end.
    pub(crate) fn go_on(&self, gate: &mut Gate) -> Result<bool, BackendError> {
        loop {
            if !gate.pushed {
                self.push(gate)?;
            }
            let arrived = match self.arrived(gate)? {
                Ok(floats) => floats,
                Err(seen) => return self.give_up(gate, seen),
            };
            self.add(gate, &arrived)?;
            for place in gate.form.sequences() {
                self.gate_write(
                    gate,
                    gate.link_address + place,
                    &gate.sequence.to_le_bytes(),
                )?;
            }
            gate.left -= 1;
            if gate.left == 0 {
                return Ok(true);
            }
            gate.sequence = next_sequence(gate.sequence);
            gate.pushed = false;
            gate.since = None;
        }
    }

    fn push(&self, gate: &mut Gate) -> Result<(), BackendError> {
        let own = self.gate_read(gate, gate.input, gate.bytes)?;
        let (place, _) = gate.form.place(gate.sequence, gate.bytes);
        let packed = gate.form.pack(own.as_chunks().0, gate.sequence);
        self.gate_write(gate, gate.link.peer.wrapping_add(place), &packed)?;
        for flag in gate.form.flags(gate.sequence) {
            let mark = gate.sequence.to_le_bytes();
            self.gate_write(gate, gate.link.peer.wrapping_add(flag), &mark)?;
        }
        gate.pushed = true;
        Ok(())
    }

    /// The peer's floats, or the sequence that lies in place of the one waited for.
    fn arrived(&self, gate: &Gate) -> Result<Result<Vec<[u8; 4]>, u32>, BackendError> {
        for flag in gate.form.flags(gate.sequence) {
            let seen = self.gate_read(gate, gate.link.own.wrapping_add(flag), 4)?;
            let seen = u32::from_le_bytes(seen.first_chunk().copied().unwrap_or([0; 4]));
            if seen != gate.sequence {
                return Ok(Err(seen));
            }
        }
        let (place, length) = gate.form.place(gate.sequence, gate.bytes);
        let landed = self.gate_read(gate, gate.link.own.wrapping_add(place), length)?;
        Ok(gate.form.unpack(&landed, gate.sequence))
    }

    fn add(&self, gate: &mut Gate, arrived: &[[u8; 4]]) -> Result<(), BackendError> {
        let own = self.gate_read(gate, gate.input, gate.bytes)?;
        let own = floats(&own);
        let other = floats(arrived.as_flattened());
        // In the order of the ranks: the least rank's part is added to.
        let (mut sums, addend) = match gate.link.rank {
            0 => (own, other),
            _ => (other, own),
        };
        add_f32(&mut sums, &addend);
        let sums: Vec<u8> = sums.into_iter().flat_map(f32::to_le_bytes).collect();
        self.gate_write(gate, gate.output, &sums)?;
        if let Some(draw) = gate.flip.take() {
            let mut state = self.state(gate.device, CALL.driver_name())?;
            Self::flip(&mut state, gate.output, gate.bytes, draw);
        }
        Ok(())
    }

    /// Whether the wait has ended, which the link then says. The deadline runs in real time, since
    /// what is waited for is a call of the program.
    #[expect(
        clippy::disallowed_methods,
        reason = "virtual time stands still while the host waits for another of its threads"
    )]
    fn give_up(&self, gate: &mut Gate, seen: u32) -> Result<bool, BackendError> {
        let abort = self.gate_read(gate, gate.link_address + ABORT_OFFSET_BYTES, 8)?;
        let aborted = abort.iter().any(|byte| *byte != 0);
        let since = *gate.since.get_or_insert_with(Instant::now);
        let waited = since.elapsed() > Duration::from_nanos(gate.link.deadline_ns);
        if !aborted && !waited {
            return Ok(false);
        }
        let failure = GateFailure {
            sequence: gate.sequence,
            aborted,
            seen,
        };
        let place = gate.link_address + FAILURE_OFFSET_BYTES;
        self.gate_write(gate, place, &failure.to_bytes())?;
        if !aborted {
            self.clock.advance(gate.link.deadline_ns);
        }
        Ok(true)
    }

    fn gate_read(&self, gate: &Gate, address: u64, bytes: u64) -> Result<Vec<u8>, BackendError> {
        let (mut memory, place) = self.gate_place(gate, address, bytes, false)?;
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        memory.read(&place, 0, &mut data);
        Ok(data)
    }

    fn gate_write(&self, gate: &Gate, address: u64, data: &[u8]) -> Result<(), BackendError> {
        let (mut memory, place) = self.gate_place(gate, address, data.len() as u64, true)?;
        memory.write(&place, 0, &mut data.to_vec());
        Ok(())
    }

    fn gate_place(
        &self,
        gate: &Gate,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(Memory<'_>, Place), BackendError> {
        let range = Range {
            address,
            bytes,
            align_bytes: 1,
            writes,
        };
        let mut memory = self.memory_of(gate.device, &[range])?;
        self.check_alive(&memory.near, CALL)?;
        let place = self.place(&mut memory, &range);
        let place = place.map_err(|refused| self.refuse(gate.device, CALL, bytes, refused))?;
        Ok((memory, place))
    }
}
