//! Synthetic workloads under placement hints: what a training step, a prompt or a token allocates.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use ds4_engine::alloc::{AllocError, Allocation, Allocator, CopyPath, Lifetime, Refusal, Request};
use ds4_engine::device::{DeviceId, DeviceMask};
use serde::Serialize;

/// Which workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Weights and optimizer state stay; activations live until the backward pass frees them.
    Train,
    /// Weights and a cache per layer stay; activations of a chunk are freed layer by layer.
    Prefill,
    /// Weights stay; the cache of each layer grows by moving to a larger block each token.
    Decode,
}

/// The shape of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which workload.
    pub phase: Phase,
    /// Bytes of each tensor.
    pub tensor_bytes: u64,
    /// Layers of the model.
    pub layers: u32,
    /// Training steps, chunks or tokens.
    pub steps: u32,
    /// Where tensors may live.
    pub placement: DeviceMask,
}

/// How many tensors of one kind went to one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Placed {
    /// Tensors.
    pub count: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What a workload did.
#[derive(Clone, Debug, Default)]
pub struct WorkloadRun {
    /// By kind of tensor and device: what went there over the whole run.
    pub placed: BTreeMap<(&'static str, DeviceId), Placed>,
    /// By path: how many copies, and their bytes.
    pub copies: BTreeMap<String, Placed>,
    /// The refusal that ended the run, and the kind of tensor that was refused.
    pub refusal: Option<(&'static str, Refusal)>,
    /// Where a relaxed hint would place the refused tensor; `None` if nowhere.
    pub relaxed_to: Option<DeviceId>,
    /// What ended the run if it was no refusal.
    pub failure: Option<String>,
    /// Steps that were completed.
    pub steps_done: u32,
    /// The run was ended early.
    pub incomplete: bool,
}

/// Why a step could not be completed.
enum Halt {
    Refused(&'static str, Refusal),
    Broken(String),
}

/// Runs a workload; a refusal or another error ends it and is part of the result.
#[must_use]
pub fn run(allocator: &Allocator, shape: &Shape, stop: &AtomicBool) -> WorkloadRun {
    let mut work = Work {
        allocator,
        shape,
        run: WorkloadRun::default(),
    };
    match work.steps(stop) {
        Ok(()) => {}
        Err(Halt::Broken(error)) => work.run.failure = Some(error),
        Err(Halt::Refused(kind, refusal)) => {
            work.run.relaxed_to = relaxed(allocator, shape, refusal.bytes);
            work.run.refusal = Some((kind, refusal));
        }
    }
    work.run
}

/// Where the request would go if any device were allowed.
fn relaxed(allocator: &Allocator, shape: &Shape, bytes: u64) -> Option<DeviceId> {
    let request = Request {
        mask: shape.placement,
        ..Request::new(bytes)
    };
    let granted = allocator
        .allocate_relaxing(&request, &[DeviceMask::ALL])
        .ok()?;
    let device = granted.allocation.device;
    // Only a question: the block is given back at once.
    allocator
        .free(granted.allocation.handle)
        .ok()
        .map(|()| device)
}

struct Work<'a> {
    allocator: &'a Allocator,
    shape: &'a Shape,
    run: WorkloadRun,
}

impl Work<'_> {
    fn steps(&mut self, stop: &AtomicBool) -> Result<(), Halt> {
        let (layers, bytes) = (self.shape.layers, self.shape.tensor_bytes);
        for _ in 0..layers {
            self.take("weights", bytes, Lifetime::Long)?;
            if self.shape.phase == Phase::Train {
                self.take("optimizer", bytes, Lifetime::Long)?;
            }
        }
        let mut caches = Vec::new();
        for _ in 0..layers {
            if self.shape.phase != Phase::Train {
                caches.push(self.take("cache", bytes, Lifetime::Transient)?);
            }
        }
        for step in 0..self.shape.steps {
            if stop.load(Ordering::Relaxed) {
                self.run.incomplete = true;
                return Ok(());
            }
            match self.shape.phase {
                Phase::Train => self.train_step()?,
                Phase::Prefill => self.prefill_step()?,
                Phase::Decode => self.decode_step(step, &mut caches)?,
            }
            self.run.steps_done += 1;
        }
        Ok(())
    }

    fn train_step(&mut self) -> Result<(), Halt> {
        let bytes = self.shape.tensor_bytes;
        let mut activations = Vec::new();
        for _ in 0..self.shape.layers {
            activations.push(self.take("activations", bytes, Lifetime::Transient)?);
        }
        while let Some(activation) = activations.pop() {
            let gradient = self.take("gradients", bytes, Lifetime::Transient)?;
            self.give(activation)?;
            self.give(gradient)?;
        }
        Ok(())
    }

    fn prefill_step(&mut self) -> Result<(), Halt> {
        let mut before = None;
        for _ in 0..self.shape.layers {
            let activation =
                self.take("activations", self.shape.tensor_bytes, Lifetime::Transient)?;
            if let Some(before) = before.replace(activation) {
                self.give(before)?;
            }
        }
        before.map_or(Ok(()), |last| self.give(last))
    }

    fn decode_step(&mut self, step: u32, caches: &mut [Allocation]) -> Result<(), Halt> {
        let grown = self.shape.tensor_bytes / 8 * (u64::from(step) + 1);
        for cache in caches {
            let bytes = self.shape.tensor_bytes.saturating_add(grown);
            let larger = self.take("cache", bytes, Lifetime::Transient)?;
            let copied = self
                .allocator
                .copy((cache.handle, 0), (larger.handle, 0), cache.bytes)
                .map_err(|error| Halt::Broken(error.to_string()))?;
            self.note_copy(copied.path, copied.bytes);
            self.give(std::mem::replace(cache, larger))?;
        }
        Ok(())
    }

    fn note_copy(&mut self, path: CopyPath, bytes: u64) {
        let entry = self.run.copies.entry(path.to_string()).or_default();
        entry.count += 1;
        entry.bytes += bytes;
    }

    fn take(
        &mut self,
        kind: &'static str,
        bytes: u64,
        lifetime: Lifetime,
    ) -> Result<Allocation, Halt> {
        let request = Request {
            mask: self.shape.placement,
            lifetime,
            ..Request::new(bytes)
        };
        match self.allocator.allocate(&request) {
            Ok(allocation) => {
                let entry = self
                    .run
                    .placed
                    .entry((kind, allocation.device))
                    .or_default();
                entry.count += 1;
                entry.bytes += bytes;
                Ok(allocation)
            }
            Err(AllocError::Refused(refusal)) => Err(Halt::Refused(kind, refusal)),
            Err(error) => Err(Halt::Broken(error.to_string())),
        }
    }

    fn give(&mut self, allocation: Allocation) -> Result<(), Halt> {
        self.allocator
            .free(allocation.handle)
            .map_err(|error| Halt::Broken(error.to_string()))
    }
}
