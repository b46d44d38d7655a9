//! `ds4 slab`: where everything lies in a rank's slab.

use ds4_engine::bytes::format_bytes;
use ds4_engine::tp::slab::{LayoutKind, SlabGeometry, SlabLayout};
use serde_json::json;

use crate::cli::{SlabArgs, SlabKind};
use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome, table};

/// Prints the layout; no device is touched.
pub(super) fn run(args: &SlabArgs, console: &Console) -> Result<Outcome, Failure> {
    let geometry = SlabGeometry {
        n_layer: args.n_layer,
        n_embd: args.n_embd,
        ranks: args.ranks,
    };
    let kind = match args.layout {
        SlabKind::Ds4 => LayoutKind::Ds4,
        SlabKind::Aligned => LayoutKind::Aligned,
    };
    let layout = SlabLayout::new(kind, geometry).map_err(Failure::usage)?;
    let hash = format!("{:016x}", layout.hash());
    let regions: Vec<_> = layout
        .regions()
        .map(|(region, span)| {
            json!({ "name": region.name(), "offset": span.offset, "bytes": span.bytes })
        })
        .collect();
    let value = json!({
        "layout": kind.name(),
        "n_layer": args.n_layer,
        "n_embd": args.n_embd,
        "ranks": args.ranks,
        "vec_bytes": layout.vec_bytes(),
        "slab_bytes": layout.slab_bytes(),
        "hash": hash,
        "regions": regions,
    });
    Ok(console.outcome(Exit::Ok, "slab", text(&layout, &hash), value))
}

fn text(layout: &SlabLayout, hash: &str) -> String {
    let geometry = layout.geometry();
    let mut rows = vec![["region", "offset", "bytes"].map(str::to_owned).to_vec()];
    rows.extend(layout.regions().map(|(region, span)| {
        vec![
            region.name().to_owned(),
            span.offset.to_string(),
            span.bytes.to_string(),
        ]
    }));
    format!(
        "slab of {} layers of width {} on {} ranks, layout {}\n\n{}\n\
         vector {} bytes, slab {} bytes ({}), hash {hash}\n",
        geometry.n_layer,
        geometry.n_embd,
        geometry.ranks,
        layout.kind().name(),
        table(&rows),
        layout.vec_bytes(),
        layout.slab_bytes(),
        format_bytes(layout.slab_bytes()),
    )
}
