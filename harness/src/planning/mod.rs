//! Does this model fit on these devices, and if not, why: a plan from a header alone.
//!
//! A model is a row of entries: the embedding, each layer with its share of the KV cache, the
//! output head. `layers` packs them onto the devices in the user's order; what it
//! leaves on the host is refused, never run there. No GPU is touched, so every budget must be given.
//!
//! What is counted: every tensor and every key and value cache, each rounded up to
//! [`ALLOCATION_BYTES`] as the allocator does. What is not: compute buffers, which depend on the
//! engine; `--gpu-reserve` keeps room for them.

mod fit;
mod layers;
mod model;
mod remedy;
mod render;

pub use remedy::Remedy;
pub use render::render_text;

use crate::gguf::GgufHeader;
use ds4_engine::bytes::format_bytes;
use ds4_engine::device::{DeviceId, Ordinal};
use ds4_engine::selection::{FLAG_VRAM, Selection};
use serde::{Serialize, Serializer};
use std::fmt;

/// What the allocator rounds every allocation up to, in bytes.
pub const ALLOCATION_BYTES: u64 = 256;
/// The context of a model that names none, in tokens; ds4's own default.
pub const DEFAULT_CONTEXT_TOKENS: u64 = 4096;

/// How the KV cache stores its elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KvType {
    /// Two bytes each.
    #[default]
    F16,
    /// Four bytes each.
    F32,
    /// Blocks of 32 elements in 34 bytes.
    Q8_0,
}

impl KvType {
    /// The name as `--kv-type` and the JSON write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl std::str::FromStr for KvType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::F16, Self::F32, Self::Q8_0]
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| {
                format!(
                    "'{}' is no KV cache type; use f16, f32 or q8_0",
                    text.escape_debug()
                )
            })
    }
}

/// What to plan for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRequest {
    /// The devices with a budget in bytes each.
    pub selection: Selection,
    /// The context in tokens; `None` is the model's own.
    pub context_tokens: Option<u64>,
    /// How the KV cache stores its elements.
    pub kv_type: KvType,
}

/// Why no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A device whose budget would have to be asked of a driver.
    NoBudget(DeviceId),
    /// No device may be used.
    NoDevices,
    /// A context of no tokens.
    ZeroContext,
    /// A metadata value that the sizes depend on is absent or of no use.
    Metadata {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Layers and tensors do not agree.
    Layers {
        /// The file.
        file: String,
        /// What does not agree.
        problem: String,
    },
    /// Rows of the KV cache that the type's blocks do not divide.
    KvRow {
        /// The type.
        kv_type: KvType,
        /// Elements in a row.
        elements: u64,
    },
    /// Tensors that together exceed what 64 bits count.
    Weights,
    /// A KV cache above what 64 bits count.
    Overflow {
        /// The context, in tokens.
        context_tokens: u64,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoBudget(device) => write!(
                f,
                "{device} has no budget, and a plan asks no GPU what is free; give one value for \
                 each device, for example {FLAG_VRAM} 24,24"
            ),
            Self::NoDevices => f.write_str("no device may be used; select at least one"),
            Self::ZeroContext => {
                f.write_str("a context of 0 tokens holds no text; give at least --context 1")
            }
            Self::Metadata { file, key, problem } => write!(
                f,
                "{}: metadata '{}' {problem}, and the size of the KV cache depends on it; convert \
                 the model again with a current converter",
                file.escape_debug(),
                key.escape_debug()
            ),
            Self::Layers { file, problem } => write!(
                f,
                "{}: {problem}; give the whole model, not an adapter or a part of it",
                file.escape_debug()
            ),
            Self::KvRow { kv_type, elements } => write!(
                f,
                "a KV cache row of {elements} elements is no whole number of {} blocks; use f16",
                kv_type.name()
            ),
            Self::Weights => f.write_str(
                "the tensors together exceed what 64 bits count; the file is damaged, download it \
                 again",
            ),
            Self::Overflow { context_tokens } => write!(
                f,
                "the KV cache of {context_tokens} tokens exceeds what 64 bits count; give a \
                 smaller --context"
            ),
        }
    }
}

impl std::error::Error for PlanError {}

/// The model of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanModel {
    /// The model's own name, or the file's.
    pub name: String,
    /// The file.
    pub file: String,
    /// The architecture.
    pub architecture: String,
    /// The number of layers.
    pub layers: usize,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of files.
    pub shards: u32,
}

/// Where the context of a plan comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextSource {
    /// The request.
    Given,
    /// The model's `context_length`.
    Model,
    /// [`DEFAULT_CONTEXT_TOKENS`], as the model names none.
    Default,
}

/// Why a device may hold something, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceUse {
    /// It may.
    Usable,
    /// `--gpu-exclude` took it out.
    Excluded,
    /// `--gpu-placement` names others.
    NotPlaced,
}

/// What one device, or the host, would hold. All sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Tensors.
    pub weights_bytes: u64,
    /// Keys and values.
    pub kv_bytes: u64,
    /// Both.
    pub total_bytes: u64,
    /// The first and the last layer, if any.
    pub layers: Option<(usize, usize)>,
    /// Whether the embedding is here.
    pub embedding: bool,
    /// Whether the output head is here.
    pub output_head: bool,
    /// Whether the weights include a second embedding for a tied output head.
    pub embedding_copy: bool,
}

/// The entry at which a device was left for the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NextEntry {
    /// `embedding`, `layer N` or `output head`.
    pub name: String,
    /// Its size with its share of the KV cache, in bytes.
    pub bytes: u64,
}

/// One device of a plan. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanDevice {
    /// The place in the user's order.
    #[serde(serialize_with = "id_number")]
    pub id: DeviceId,
    /// The driver's number.
    #[serde(serialize_with = "ordinal_number")]
    pub ordinal: Ordinal,
    /// Whether it may hold anything.
    pub usage: DeviceUse,
    /// What `--gpu-vram` gives it.
    pub capacity_bytes: u64,
    /// What stays free of that.
    pub reserve_bytes: u64,
    /// What may be filled: capacity less reserve.
    pub budget_bytes: u64,
    /// What it would hold.
    #[serde(flatten)]
    pub load: Load,
    /// What of the budget is left.
    pub free_bytes: u64,
    /// The entry that was too large for what is left, if it is not all here or before.
    pub next_entry: Option<NextEntry>,
    /// How much more this device alone would need for the whole model to fit; `None` when it fits
    /// already or the device is not used.
    pub shortfall_bytes: Option<u64>,
}

/// Whether the model fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every entry is on a device.
    Fits,
    /// Some have no room.
    DoesNotFit,
}

/// A plan, as `ds4 plan --format json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanResult {
    /// The version of this format.
    pub schema: u32,
    /// Always `plan`.
    pub command: &'static str,
    /// The model.
    pub model: PlanModel,
    /// The context, in tokens.
    pub context_tokens: u64,
    /// Where the context comes from.
    pub context_source: ContextSource,
    /// How the KV cache stores its elements.
    pub kv_type: KvType,
    /// The devices in the user's order.
    pub devices: Vec<PlanDevice>,
    /// What has no room on any device.
    pub unplaced: Load,
    /// Everything to be placed, in bytes.
    pub needed_bytes: u64,
    /// The budgets of the usable devices together, in bytes.
    pub budget_bytes: u64,
    /// What has no room, in bytes; 0 when the model fits.
    pub shortfall_bytes: u64,
    /// Whether the model fits.
    pub verdict: Verdict,
    /// One change that makes it fit, found by packing again with it.
    pub remedy: Option<Remedy>,
    /// What a reader should know about how the sizes were found.
    pub notes: Vec<String>,
}

/// Plans the model of `header` as `request` asks.
///
/// # Errors
/// [`PlanError`]: the request lacks a budget or a context, or the header lacks what the sizes
/// depend on. A model that does not fit is no error but a verdict.
pub fn plan(header: &GgufHeader, request: &PlanRequest) -> Result<PlanResult, PlanError> {
    let model = model::Model::read(header)?;
    let (context_tokens, context_source) = match (request.context_tokens, model.context_tokens) {
        (Some(0), _) => return Err(PlanError::ZeroContext),
        (Some(given), _) => (given, ContextSource::Given),
        (None, Some(own @ 1..)) => (own, ContextSource::Model),
        (None, _) => (DEFAULT_CONTEXT_TOKENS, ContextSource::Default),
    };
    let case = fit::Case::new(&model, &request.selection, context_tokens, request.kv_type)?;
    let outcome = case.pack()?;
    let mut devices = case.devices(&request.selection, &outcome);
    let fits = outcome.fits();
    if !fits {
        for device in &mut devices {
            device.shortfall_bytes = case.shortfall(device.id)?;
        }
    }
    let remedy = if fits {
        None
    } else {
        remedy::find(&case, &devices)?
    };
    let unplaced = outcome.unplaced();
    Ok(PlanResult {
        schema: 1,
        command: "plan",
        model: PlanModel {
            name: header.model_name().to_owned(),
            file: header.file.clone(),
            architecture: model.architecture.clone(),
            layers: model.layers.len(),
            tensors: header.tensors.len(),
            shards: header.shards,
        },
        context_tokens,
        context_source,
        kv_type: request.kv_type,
        needed_bytes: outcome.needed_bytes(),
        budget_bytes: case.budget_bytes(),
        shortfall_bytes: unplaced.total_bytes,
        verdict: if fits {
            Verdict::Fits
        } else {
            Verdict::DoesNotFit
        },
        remedy,
        notes: notes(&model, context_tokens, &outcome),
        devices,
        unplaced,
    })
}

fn notes(model: &model::Model, context_tokens: u64, outcome: &fit::Outcome) -> Vec<String> {
    let mut notes = model.notes.clone();
    if let Some(own) = model.context_tokens
        && context_tokens > own
    {
        notes.push(format!(
            "{context_tokens} tokens exceed the {own} for which the model was made"
        ));
    }
    if outcome.copied {
        notes.push(format!(
            "the output head uses the embedding's tensor; on another device it holds a copy of {}",
            format_bytes(model.tied_bytes)
        ));
    }
    notes.push("compute buffers are not counted; keep room for them with --gpu-reserve".to_owned());
    notes
}

fn id_number<S: Serializer>(id: &DeviceId, serializer: S) -> Result<S::Ok, S::Error> {
    id.index().serialize(serializer)
}

fn ordinal_number<S: Serializer>(ordinal: &Ordinal, serializer: S) -> Result<S::Ok, S::Error> {
    ordinal.0.serialize(serializer)
}

#[cfg(test)]
mod tests;
