//! Which protocol a rank speaks, and what of the flags it leaves room for.

use ds4_engine::tp::schedule::{Schedule, ScheduleError};
use ds4_engine::tp::session::Dialect;
use ds4_engine::tp::transport::{Transport, TransportSet};

use super::shape::Shape;
use crate::cli::RankArgs;
use crate::output::Failure;

/// Layers and width of the one model that ds4 runs without gates in its first layers, and without
/// splitting its logits (GLM 5.2).
const GLM: (u32, u32) = (79, 6144);

/// Whether the flags ask for ds4's own protocol, which is refused beside what it does not have.
pub(super) fn is_ds4(args: &RankArgs, ranks: u32, keyed: bool) -> Result<bool, Failure> {
    match args.protocol.as_deref() {
        None | Some("native") => return Ok(false),
        Some("ds4-v7") => {}
        Some(other) => {
            return Err(Failure::usage(format!(
                "invalid --protocol value: {other}; use native or ds4-v7"
            )));
        }
    }
    let transport = args.transport.as_deref().unwrap_or("auto");
    let problem = if ranks != 2 {
        format!("joins two ranks, not {ranks}: leave out --ranks")
    } else if args.encrypt {
        "does not encrypt: leave out --encrypt".to_owned()
    } else if keyed {
        "has no keys: leave out --key-file and DS4_TP_KEY; --insecure lets it listen beyond this \
         host"
            .to_owned()
    } else if !matches!(transport, "auto" | "tcp") {
        format!("runs over tcp here: leave out --transport {transport}")
    } else if args.debug_hash.is_some() {
        "has no check of the state that a ds4 rank would answer: leave out --debug-hash".to_owned()
    } else {
        return Ok(true);
    };
    Err(Failure::usage(format!("--protocol ds4-v7 {problem}")))
}

/// Who a rank of ds4's own protocol says it is.
pub(super) fn ds4_dialect(shape: &Shape) -> Dialect {
    Dialect::Ds4V7 {
        gguf_bytes: shape.file_bytes,
        // The reference's numbers: Flash, Pro, GLM 5.2.
        model_id: match (shape.n_layer, shape.n_embd) {
            (61, 7168) => 1,
            GLM => 2,
            _ => 0,
        },
    }
}

/// Which gates a token passes there, and whether each rank computes half of the logits.
pub(super) fn ds4_gates(shape: &Shape) -> Result<(Schedule, bool), ScheduleError> {
    if (shape.n_layer, shape.n_embd) == GLM {
        Ok((Schedule::new(shape.n_layer, 7, 2, 75)?, false))
    } else {
        Ok((Schedule::every_gate(shape.n_layer)?, true))
    }
}

/// The only transport of it here.
pub(super) fn ds4_transports() -> TransportSet {
    TransportSet::of(&[Transport::Tcp])
}

/// What a person must know beforehand.
pub(super) const DS4_NOTE: &str = "ds4-v7 has no keys and no checksums, and a ds4 rank computes \
     numbers of its own: they are exchanged and not verified";
