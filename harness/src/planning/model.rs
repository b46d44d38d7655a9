//! The entries of a model: what a header says about their sizes.

use super::{ALLOCATION_BYTES, KvType, PlanError};
use crate::gguf::{GgufHeader, Metadata, TensorInfo, TensorType};
use crate::output::counted;
use ds4_engine::bytes::align_up;

/// The most layers; the deepest models of today have a few hundred.
const LAYERS_MAX: usize = 4096;

/// What one layer keeps of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// Its tensors, in bytes.
    pub(super) weights_bytes: u64,
    /// Elements of a key row and of a value row, over all heads.
    pub(super) row_elements: [u64; 2],
    /// The most tokens it looks back on, where it is local.
    pub(super) window_tokens: Option<u64>,
}

/// A model as a row of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) architecture: String,
    /// The embedding's tensors, in bytes.
    pub(super) embedding_bytes: u64,
    pub(super) layers: Vec<Layer>,
    /// The output head's tensors, and all that belong to no layer, in bytes.
    pub(super) head_bytes: u64,
    /// What the head needs besides when it is not where the embedding is, in bytes.
    pub(super) tied_bytes: u64,
    /// The context the model was made for, in tokens.
    pub(super) context_tokens: Option<u64>,
    pub(super) notes: Vec<String>,
}

impl Model {
    pub(super) fn read(header: &GgufHeader) -> Result<Self, PlanError> {
        let facts = Facts::new(header)?;
        let mut notes = Vec::new();
        let mut layers = facts.layers(&mut notes)?;
        let mut embedding_bytes = 0_u64;
        let mut head_bytes = 0_u64;
        let mut seen = vec![false; layers.len()];
        for tensor in &header.tensors {
            let bytes = rounded(tensor)?;
            let entry = match block_number(&tensor.name) {
                Some(number) => {
                    let Some((layer, seen)) = layers.get_mut(number).zip(seen.get_mut(number))
                    else {
                        let count = layers.len();
                        return Err(facts.layer_problem(format!(
                            "tensor '{}' belongs to a layer beyond the {count} of the metadata",
                            tensor.name.escape_debug()
                        )));
                    };
                    *seen = true;
                    &mut layer.weights_bytes
                }
                None if tensor.name.starts_with("token_embd") => &mut embedding_bytes,
                None => &mut head_bytes,
            };
            *entry = entry.checked_add(bytes).ok_or(PlanError::Weights)?;
        }
        if let Some(layer) = seen.iter().position(|seen| !seen) {
            return Err(facts.layer_problem(format!("layer {layer} has no tensor")));
        }
        if facts.count("ssm.state_size").is_some() {
            notes.push("the state of recurrent layers is not counted".to_owned());
        }
        Ok(Self {
            architecture: facts.architecture.to_owned(),
            embedding_bytes,
            layers,
            head_bytes,
            tied_bytes: tied_bytes(header)?,
            context_tokens: facts.count("context_length"),
            notes,
        })
    }

    /// The bytes of the keys and values of `layer` for a context of `context_tokens` tokens.
    pub(super) fn kv_bytes(
        layer: &Layer,
        context_tokens: u64,
        kv_type: KvType,
    ) -> Result<u64, PlanError> {
        let tokens = layer
            .window_tokens
            .map_or(context_tokens, |window| window.min(context_tokens));
        let kind = match kv_type {
            KvType::F16 => TensorType::F16,
            KvType::F32 => TensorType::F32,
            KvType::Q8_0 => TensorType::Q8_0,
        };
        let mut sum = 0_u64;
        for elements in layer.row_elements {
            if !elements.is_multiple_of(kind.block().0) {
                return Err(PlanError::KvRow { kv_type, elements });
            }
            sum = kind
                .bytes(elements)
                .and_then(|row| row.checked_mul(tokens))
                .and_then(|bytes| align_up(bytes, ALLOCATION_BYTES))
                .and_then(|bytes| bytes.checked_add(sum))
                .ok_or(PlanError::Overflow { context_tokens })?;
        }
        Ok(sum)
    }
}

fn rounded(tensor: &TensorInfo) -> Result<u64, PlanError> {
    align_up(tensor.bytes, ALLOCATION_BYTES).ok_or(PlanError::Weights)
}

/// The layer of `blk.N.…`, as ds4 and llama.cpp name the tensors of layers.
fn block_number(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
    number.parse().ok()
}

/// A model without `output.weight` uses the embedding for its head, too.
fn tied_bytes(header: &GgufHeader) -> Result<u64, PlanError> {
    let named = |name: &str| header.tensors.iter().find(|tensor| tensor.name == name);
    match (named("output.weight"), named("token_embd.weight")) {
        (None, Some(embedding)) => rounded(embedding),
        _ => Ok(0),
    }
}

/// The metadata under the architecture's prefix.
struct Facts<'a> {
    file: &'a str,
    architecture: &'a str,
    metadata: &'a Metadata,
    layer_count: usize,
}

impl<'a> Facts<'a> {
    fn new(header: &'a GgufHeader) -> Result<Self, PlanError> {
        let mut facts = Self {
            file: &header.file,
            architecture: "general",
            metadata: &header.metadata,
            layer_count: 0,
        };
        facts.architecture = header
            .architecture()
            .ok_or_else(|| facts.problem("architecture", "is missing"))?;
        let count = facts.needed("block_count")?;
        // A layer has at least one tensor, which bounds the count before anything is sized by it.
        let most = header.tensors.len().min(LAYERS_MAX);
        facts.layer_count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= most)
            .ok_or_else(|| {
                let tensors = header.tensors.len();
                facts.layer_problem(format!(
                    "{count} layers are claimed with {tensors} tensors (the most is {most})"
                ))
            })?;
        Ok(facts)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.metadata.count(&self.key(name))
    }

    fn needed(&self, name: &str) -> Result<u64, PlanError> {
        self.count(name)
            .ok_or_else(|| self.problem(name, "is missing or no count"))
    }

    /// A value that may be one for all layers or an array of one for each.
    fn per_layer(&self, name: &str) -> Result<Option<Vec<u64>>, PlanError> {
        if let Some(one) = self.count(name) {
            return Ok(Some(vec![one; self.layer_count]));
        }
        let key = self.key(name);
        if self.metadata.value(&key).is_none() {
            return Ok(None);
        }
        match self.metadata.counts(&key) {
            Some(each) if each.len() >= self.layer_count => Ok(Some(each)),
            _ => Err(self.problem(name, "is neither a count nor one count for each layer")),
        }
    }

    fn problem(&self, name: &str, problem: &str) -> PlanError {
        PlanError::Metadata {
            file: self.file.to_owned(),
            key: self.key(name),
            problem: problem.to_owned(),
        }
    }

    fn layer_problem(&self, problem: String) -> PlanError {
        PlanError::Layers {
            file: self.file.to_owned(),
            problem,
        }
    }

    fn layers(&self, notes: &mut Vec<String>) -> Result<Vec<Layer>, PlanError> {
        let heads = self.per_layer("attention.head_count")?;
        let kv_heads = match self.per_layer("attention.head_count_kv")? {
            Some(each) => each,
            None => heads
                .clone()
                .ok_or_else(|| self.problem("attention.head_count", "is missing"))?,
        };
        let windows = self.windows(notes)?;
        let mut layers = Vec::new();
        for (index, kv_heads) in kv_heads.into_iter().take(self.layer_count).enumerate() {
            let window_tokens = windows.get(index).copied().flatten();
            let heads = heads.as_ref().and_then(|heads| heads.get(index)).copied();
            let mut row_elements = [0; 2];
            for (row, name) in row_elements.iter_mut().zip(["key_length", "value_length"]) {
                if kv_heads > 0 {
                    let length = self.head_length(name, window_tokens.is_some(), heads)?;
                    *row = length.checked_mul(kv_heads).ok_or_else(|| {
                        self.problem(&format!("attention.{name}"), "is too large")
                    })?;
                }
            }
            layers.push(Layer {
                weights_bytes: 0,
                row_elements,
                window_tokens,
            });
        }
        Ok(layers)
    }

    /// Elements of a key or value of one head; local layers may have their own.
    fn head_length(&self, name: &str, local: bool, heads: Option<u64>) -> Result<u64, PlanError> {
        let key = format!("attention.{name}");
        let own = local.then(|| self.count(&format!("{key}_swa"))).flatten();
        if let Some(length) = own.or_else(|| self.count(&key)) {
            return Ok(length);
        }
        // The rule of every converter: without a length of its own, a head has its share.
        match (self.count("embedding_length"), heads) {
            (Some(width), Some(heads @ 1..)) => Ok(width / heads),
            _ => Err(self.problem(&key, "is missing, as is what it would follow from")),
        }
    }

    /// The window of each local layer.
    fn windows(&self, notes: &mut Vec<String>) -> Result<Vec<Option<u64>>, PlanError> {
        const PATTERN: &str = "attention.sliding_window_pattern";
        let Some(window @ 1..) = self.count("attention.sliding_window") else {
            return Ok(Vec::new());
        };
        let local: Vec<bool> = match (self.count(PATTERN), self.per_layer(PATTERN)?) {
            // llama.cpp's `set_swa_pattern`: of each period, the last layer sees everything.
            (Some(period), _) => (1_u64..)
                .take(self.layer_count)
                .map(|number| period == 0 || !number.is_multiple_of(period))
                .collect(),
            (None, Some(each)) => each.iter().map(|flag| *flag != 0).collect(),
            (None, None) => {
                notes.push(format!(
                    "the file gives a window of {} but not which layers use it; the whole context \
                     is counted for every layer",
                    counted(window, "token")
                ));
                return Ok(Vec::new());
            }
        };
        Ok(local
            .into_iter()
            .map(|local| local.then_some(window))
            .collect())
    }
}
