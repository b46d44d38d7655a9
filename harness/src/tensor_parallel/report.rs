//! What a rank reports at its end.

use ds4_engine::bytes::format_bytes;
use ds4_engine::hash::StateHash;
use ds4_engine::tp::session::Dialect;
use ds4_engine::tp::transport::Transport;
use serde_json::json;

use super::histogram::Histogram;
use super::plan::Plan;
use crate::exit::Exit;
use crate::output::{Console, Outcome, counted};

/// What was measured.
#[derive(Default)]
pub(super) struct Figures {
    pub(super) tokens: u64,
    pub(super) token_ns: u64,
    /// Nanoseconds of the whole run.
    pub(super) seconds: u64,
    pub(super) gates: u64,
    /// Those of them whose sum went round the ring of all ranks.
    pub(super) ring_gates: u64,
    pub(super) gate_ns: Histogram,
    pub(super) verified_bytes: u64,
    pub(super) hashes: u64,
    pub(super) hash: StateHash,
}

/// A run that is over.
pub(super) struct Finished<'a> {
    pub(super) plan: &'a Plan,
    pub(super) transport: Transport,
    pub(super) reason: String,
    pub(super) figures: Figures,
    pub(super) ended: Result<(), (Exit, String)>,
}

/// The report, in the chosen format.
pub(super) fn report(run: &Finished<'_>, console: &Console) -> Outcome {
    let figures = &run.figures;
    let config = &run.plan.config;
    let (exit, error) = match &run.ended {
        Ok(()) => (Exit::Ok, None),
        Err((exit, why)) => (*exit, Some(why.as_str())),
    };
    let per_second = per_second(figures.tokens, figures.token_ns);
    let ranks = config.identity.layout.geometry().ranks;
    let native = config.dialect == Dialect::Native;
    let passed = counted(figures.gates, "gate");
    let verified = if native {
        format!(
            "verified {} in {passed} ({} round the ring; every sum right), {}",
            format_bytes(figures.verified_bytes),
            figures.ring_gates,
            counted(figures.hashes, "check of the state"),
        )
    } else {
        format!("{passed} of the peer's own numbers, exchanged and not verified")
    };
    let mut value = json!({
        "protocol": if native { "native" } else { "ds4-v7" },
        "role": if config.rank == 0 { "leader" } else { "worker" },
        "rank": config.rank,
        "ranks": ranks,
        "model": run.plan.shape.name,
        "n_layer": run.plan.shape.n_layer,
        "n_embd": run.plan.shape.n_embd,
        "keyed": run.plan.key.is_some(),
        "encrypted": run.plan.encrypt,
        "transport": {
            "path": run.transport.name(),
            "reason": run.reason,
            "library": run.plan.library.as_ref().map(|it| it.origin()),
        },
        "device": run.plan.machine.target.origin(),
        "tokens": figures.tokens,
        "tokens_per_second": per_second,
        "seconds": seconds(figures.seconds),
        "gates": figures.gates,
        "ring_gates": figures.ring_gates,
        "gate_ns": {
            "p50": figures.gate_ns.permille(500),
            "p99": figures.gate_ns.permille(990),
            "p999": figures.gate_ns.permille(999),
            "min": figures.gate_ns.min(),
            "max": figures.gate_ns.max(),
            "n": figures.gate_ns.n(),
        },
        "verified_bytes": figures.verified_bytes,
        "hash_checks": figures.hashes,
        "state_hash": format!("{:016x}", figures.hash.finish()),
        "complete": error.is_none(),
    });
    if let (Some(error), Some(object)) = (error, value.as_object_mut()) {
        object.insert("error".to_owned(), json!({ "message": error }));
    }
    if let Some(error) = error {
        console.remark(error);
    }
    let us = |ns: u64| format!("{:.1} µs", ns as f64 / 1000.0);
    let text = format!(
        "rank {} of {ranks}, {}, by {} ({})\n{}\n\n\
         {} in {:.2} s: {per_second:.1} tokens/s\n\
         gate latency p50 {}, p99 {}, p99.9 {}, min {} ({})\n\
         {verified}\nstate {:016x}\n\n{}\n",
        config.rank,
        run.plan.shape.name,
        run.transport,
        run.reason,
        run.plan.machine.target.origin(),
        counted(figures.tokens, "token"),
        seconds(figures.token_ns),
        us(figures.gate_ns.permille(500)),
        us(figures.gate_ns.permille(990)),
        us(figures.gate_ns.permille(999)),
        us(figures.gate_ns.min()),
        counted(figures.gate_ns.n(), "gate"),
        figures.hash.finish(),
        match error {
            None => "ok: all ranks ended in order".to_owned(),
            Some(error) => format!("incomplete: {error}"),
        },
    );
    console.outcome(exit, "tensor-parallel", text, value)
}

#[expect(clippy::cast_precision_loss, reason = "shown to a few digits")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "shown to a few digits")]
fn per_second(count: u64, ns: u64) -> f64 {
    if ns == 0 {
        0.0
    } else {
        count as f64 * 1e9 / ns as f64
    }
}
