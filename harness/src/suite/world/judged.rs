//! What a world makes of a granted block and of a refusal.

use ds4_engine::alloc::{Allocation, Refusal, RefusalCause, RefusalReason, Request};
use ds4_engine::device::{DeviceId, DeviceMask};

use super::super::trial::{Failure, Held, hold};
use super::{Owned, World};

/// How long a block's first use takes where time is virtual, in nanoseconds.
const USE_NS: u64 = 20_000;

impl World {
    pub(super) fn check_shape(&self, request: &Request, allocation: &Allocation) -> Held {
        let Allocation {
            device,
            offset_bytes,
            bytes,
            reserved_bytes,
            ..
        } = *allocation;
        let align = request.align_bytes.max(256);
        hold!(
            offset_bytes.is_multiple_of(align),
            "offset {offset_bytes} is not aligned to {align}"
        );
        hold!(
            allocation.address.0.is_multiple_of(align),
            "address {} is not aligned to {align}",
            allocation.address
        );
        hold!(
            bytes == request.bytes && reserved_bytes >= bytes && reserved_bytes - bytes < 256,
            "{bytes} bytes in {reserved_bytes} for a request of {}",
            request.bytes
        );
        let used = self.allocator.stats(device).map(|stats| stats.used_bytes);
        let expected = self.used(device) + reserved_bytes;
        hold!(
            used == Some(expected),
            "{device} says {used:?} bytes used, {expected} are"
        );
        Ok(())
    }

    /// Writes to a block on its stream, so that memory still in use elsewhere shows as a race where
    /// stream work is watched.
    pub(super) fn first_use(&self, owned: &Owned) -> Held {
        let Allocation {
            device,
            address,
            bytes,
            ..
        } = owned.allocation;
        let used = self
            .instruments
            .touch(device, owned.stream, address, bytes, USE_NS);
        match used {
            Err(error) if !self.faulty && !self.lost.contains(device) => Err(Failure::Broken(
                format!("a granted block cannot be used: {error}"),
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn check_refusal(
        &mut self,
        request: &Request,
        refusal: &Refusal,
        order: &[DeviceId],
        hash: u64,
    ) -> Held {
        self.tally.refusals += 1;
        let now = self.allocator.state_hash();
        hold!(
            now == hash,
            "the state changed from {hash:#x} to {now:#x} at: {refusal}"
        );
        hold!(
            refusal.bytes == request.bytes && refusal.mask == request.mask,
            "the refusal names another request: {refusal}"
        );
        match &refusal.cause {
            RefusalCause::Orphaned { .. } | RefusalCause::Excluded { .. } => {
                hold!(
                    order.is_empty(),
                    "candidates {order:?} were not tried: {refusal}"
                );
                return Ok(());
            }
            RefusalCause::Tried(tried) => {
                let devices: Vec<DeviceId> =
                    tried.iter().map(|candidate| candidate.device).collect();
                hold!(
                    devices == order,
                    "tried {devices:?}, the candidates are {order:?}"
                );
                for candidate in tried {
                    let device = candidate.device;
                    let figures = (candidate.used_bytes, candidate.budget_bytes);
                    let expected = (self.used(device), self.budget(device));
                    hold!(
                        figures == expected,
                        "{device} has {expected:?} used and budget, not {figures:?}"
                    );
                    self.check_reason(request, device, &candidate.reason)?;
                }
            }
        }
        Ok(())
    }

    fn check_reason(
        &mut self,
        request: &Request,
        device: DeviceId,
        reason: &RefusalReason,
    ) -> Held {
        let over = request.bytes > self.budget(device).saturating_sub(self.used(device));
        let fits = |free| self.could_hold(device, request, free);
        let (situation, right) = match reason {
            RefusalReason::Budget => ("refusal: budget", over),
            RefusalReason::Fragmentation { .. } => ("refusal: fragmentation", !fits(u64::MAX)),
            RefusalReason::AddressSpace { .. } => ("refusal: address space", !fits(u64::MAX)),
            RefusalReason::DriverOutOfMemory { .. } => (
                "refusal: memory taken by another process",
                self.faulty || !fits(self.driver_free(device)),
            ),
            RefusalReason::DeviceLost { .. } => (
                "refusal: device lost",
                self.faulty || self.lost.contains(device),
            ),
            RefusalReason::Injected { .. } => ("refusal: injected", self.faulty),
            RefusalReason::Driver { .. } => ("refusal: driver", self.faulty),
            RefusalReason::UnknownStream { .. } => ("refusal: unknown stream", true),
        };
        hold!(
            right,
            "{device} refuses {request:?} for a wrong reason: {reason:?}"
        );
        if matches!(reason, RefusalReason::DeviceLost { .. }) {
            self.lost = self.lost.or(DeviceMask::only(device));
        }
        self.tally.met(situation);
        Ok(())
    }
}
