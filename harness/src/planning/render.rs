//! A plan as text for people.

use super::{ContextSource, DeviceUse, Load, PlanDevice, PlanResult, Verdict};
use crate::output::{counted, wrapped};
use crate::printable::printable;
use ds4_engine::bytes::format_bytes;
use std::fmt::Write as _;

/// The plan as a table: the model, a line for each device, the verdict and its remedy, notes.
#[must_use]
pub fn render_text(plan: &PlanResult) -> String {
    let mut text = String::new();
    header(&mut text, plan);
    table(&mut text, plan);
    verdict(&mut text, plan);
    for note in &plan.notes {
        sentence(&mut text, &format!("note: {note}"));
    }
    text
}

/// Writing to a `String` cannot fail.
fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(what);
    text.push('\n');
}

/// A sentence in lines that are not too wide; names in it may come from the file.
fn sentence(text: &mut String, what: &str) {
    text.push_str(&wrapped(&printable(what), "  "));
    text.push('\n');
}

fn header(text: &mut String, plan: &PlanResult) {
    let model = &plan.model;
    let mut file = model.file.clone();
    if model.shards > 1 {
        file.push_str(&format!(" and {} more", model.shards - 1));
    }
    sentence(
        text,
        &format!(
            "{} ({}), {}, {}, {file}",
            model.name,
            model.architecture,
            counted(model.layers as u64, "layer"),
            counted(model.tensors as u64, "tensor"),
        ),
    );
    let source = match plan.context_source {
        ContextSource::Given => "",
        ContextSource::Model => " (the model's own)",
        ContextSource::Default => " (the default, as the model names none)",
    };
    line(
        text,
        format_args!(
            "context {}{source}, KV cache {}\n",
            counted(plan.context_tokens, "token"),
            plan.kv_type.name()
        ),
    );
}

const COLUMNS: [&str; 9] = [
    "device", "driver", "capacity", "reserve", "weights", "KV cache", "total", "free", "short by",
];

fn table(text: &mut String, plan: &PlanResult) {
    let mut rows: Vec<(Vec<String>, String)> = Vec::new();
    rows.push((
        COLUMNS.iter().map(ToString::to_string).collect(),
        "holds".to_owned(),
    ));
    rows.extend(plan.devices.iter().map(device_row));
    if plan.verdict == Verdict::DoesNotFit {
        let load = &plan.unplaced;
        let mut cells = vec!["no room".to_owned()];
        cells.extend([(); 3].map(|()| String::new()));
        cells.extend(load_cells(load));
        cells.extend([(); 2].map(|()| String::new()));
        rows.push((cells, holds(load)));
    }
    // A column that says nothing in any row is left out.
    let says_something = |column: usize| {
        let mut cells = rows
            .iter()
            .skip(1)
            .filter_map(|(cells, _)| cells.get(column));
        cells.any(|cell| !cell.is_empty() && cell != "0 B")
    };
    let shown: Vec<(usize, usize)> = (0..COLUMNS.len())
        .filter(|column| says_something(*column))
        .map(|column| {
            let cells = rows.iter().filter_map(|(cells, _)| cells.get(column));
            (column, cells.map(String::len).max().unwrap_or(0))
        })
        .collect();
    for (cells, holds) in &rows {
        let mut row = String::new();
        for (column, width) in &shown {
            let cell = cells.get(*column).map_or("", String::as_str);
            if *column == 0 {
                let _ = write!(row, "{cell:<width$}");
            } else {
                let _ = write!(row, "  {cell:>width$}");
            }
        }
        let below = " ".repeat(row.chars().count() + 2);
        line(
            text,
            format_args!(
                "{}",
                wrapped(&format!("{row}  {}", printable(holds)), &below)
            ),
        );
    }
    text.push('\n');
}

fn device_row(device: &PlanDevice) -> (Vec<String>, String) {
    let mut cells = vec![
        device.id.to_string(),
        device.ordinal.to_string(),
        format_bytes(device.capacity_bytes),
        format_bytes(device.reserve_bytes),
    ];
    cells.extend(load_cells(&device.load));
    cells.push(format_bytes(device.free_bytes));
    cells.push(device.shortfall_bytes.map_or(String::new(), format_bytes));
    let holds = match device.usage {
        DeviceUse::Usable => match (&device.next_entry, device.shortfall_bytes) {
            (Some(next), Some(_)) => format!(
                "{}; {} needs {}",
                holds(&device.load),
                next.name,
                format_bytes(next.bytes)
            ),
            _ => holds(&device.load),
        },
        DeviceUse::Excluded => "excluded".to_owned(),
        DeviceUse::NotPlaced => "not in the placement".to_owned(),
    };
    (cells, holds)
}

fn load_cells(load: &Load) -> [String; 3] {
    [load.weights_bytes, load.kv_bytes, load.total_bytes].map(format_bytes)
}

fn holds(load: &Load) -> String {
    let mut parts = Vec::new();
    if load.embedding {
        parts.push("embedding".to_owned());
    }
    match load.layers {
        Some((first, last)) if first == last => parts.push(format!("layer {first}")),
        Some((first, last)) => parts.push(format!("layers {first}-{last}")),
        None => {}
    }
    if load.output_head {
        parts.push("output head".to_owned());
    }
    if load.embedding_copy {
        parts.push("embedding copy".to_owned());
    }
    if parts.is_empty() {
        return "nothing".to_owned();
    }
    parts.join(", ")
}

fn verdict(text: &mut String, plan: &PlanResult) {
    let needed = format_bytes(plan.needed_bytes);
    let budget = format_bytes(plan.budget_bytes);
    if plan.verdict == Verdict::Fits {
        line(text, format_args!("fits: {needed} of {budget}"));
        return;
    }
    let short = format_bytes(plan.shortfall_bytes);
    sentence(
        text,
        &format!(
            "does not fit: {short} of the {needed} has no room in {budget}, as each entry stays \
             whole and in order"
        ),
    );
    sentence(
        text,
        "short by is what one device alone would need more for the whole model to fit",
    );
    match &plan.remedy {
        Some(remedy) => sentence(text, &format!("remedy: {remedy} (checked)")),
        None => sentence(
            text,
            "remedy: none of context, memory of one device or reserve is enough alone; use more \
             devices or a smaller quantization",
        ),
    }
}
