//! `ds4 scaling`: what a token's gates cost on more ranks, from times of two.

use std::path::Path;

use ds4_engine::bytes::format_bytes;
use ds4_sim::read_file;
use ds4_sim::scaling::{
    Algorithm, Link, LinkProfile, MAX_POINTS, MAX_VECTOR_BYTES, PointNs, Residual, closed_form_ps,
    shipped, simulate,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::{ScalingAlgorithm, ScalingArgs};
use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome, table, with_field, wrapped};
use crate::printable::printable;

/// The error up to which a point counts as predicted, in millionths.
const WITHIN_PPM: u64 = 150_000;

/// One count of ranks.
struct Row {
    ranks: u16,
    costs: Vec<(Algorithm, u64)>,
    best: (Algorithm, u64),
    /// The least compute of a token on one rank from which this count beats the one before it in
    /// the list, in picoseconds; `None` where it costs more compute than it could save.
    pays_from_ps: Option<u64>,
    changes: Vec<(u64, Algorithm)>,
    beyond: bool,
}

/// Prints the model's figures; nothing is measured.
pub(super) fn run(args: &ScalingArgs, console: &Console) -> Result<Outcome, Failure> {
    if args.bytes > MAX_VECTOR_BYTES {
        return Err(Failure::usage(format!(
            "--bytes {} is beyond the model; give at most 1G",
            args.bytes
        )));
    }
    let profile = profile(args)?;
    let link = profile.link();
    let mut ranks = args.ranks.clone();
    ranks.sort_unstable();
    ranks.dedup();
    let mut rows: Vec<Row> = Vec::new();
    for ranks in ranks {
        if console.stopped() {
            break;
        }
        let row = row(args, &profile, &link, ranks, rows.last())?;
        rows.push(row);
    }
    let exit = if console.stopped() {
        Exit::Interrupted
    } else {
        Exit::Ok
    };
    let residuals = profile.residuals();
    let text = text(args, &profile, &rows, &residuals);
    let value = value(args, &profile, &link, &rows, &residuals);
    let value = with_field(value, "incomplete", console.stopped());
    Ok(console.outcome(exit, "scaling", text, value))
}

fn row(
    args: &ScalingArgs,
    profile: &LinkProfile,
    link: &Link,
    ranks: u16,
    before: Option<&Row>,
) -> Result<Row, Failure> {
    let algorithms = algorithms(args);
    let mut costs = Vec::new();
    for algorithm in &algorithms {
        let closed = closed_form_ps(link, *algorithm, ranks, args.bytes);
        let run = simulate(link, *algorithm, ranks, args.bytes).map_err(Failure::failed)?;
        if run.ps != closed {
            return Err(Failure::failed(format!(
                "{} on {ranks} ranks: {closed} ps by formula and {} ps message by message; \
                 this is a fault of ds4, report it",
                algorithm.name(),
                run.ps
            )));
        }
        costs.push((*algorithm, closed));
    }
    let best = costs.iter().min_by_key(|(_, ps)| *ps).copied();
    let best = best.unwrap_or((Algorithm::OneShot, 0));
    let (ranks_before, cost_before) = before.map_or((1, 0), |row| (row.ranks, row.best.1));
    Ok(Row {
        ranks,
        best,
        pays_from_ps: pays_from_ps(
            (ranks_before, token_ps(args, cost_before)),
            (ranks, token_ps(args, best.1)),
        ),
        changes: link.crossovers(&algorithms, ranks),
        beyond: profile.ranks_max.is_some_and(|most| ranks > most),
        costs,
    })
}

/// Compute C on one rank takes C / N on N: from which C on is the larger count the quicker one?
fn pays_from_ps(few: (u16, u64), many: (u16, u64)) -> Option<u64> {
    let more = u128::from(many.1.saturating_sub(few.1));
    let product = u128::from(few.0) * u128::from(many.0);
    let saved = u128::from(many.0.checked_sub(few.0)?);
    u64::try_from((more * product).checked_div(saved)?).ok()
}

fn token_ps(args: &ScalingArgs, gate_ps: u64) -> u64 {
    gate_ps.saturating_mul(u64::from(args.gates))
}

fn algorithms(args: &ScalingArgs) -> Vec<Algorithm> {
    match args.algorithm {
        ScalingAlgorithm::All => Algorithm::ALL.to_vec(),
        ScalingAlgorithm::OneShot => vec![Algorithm::OneShot],
        ScalingAlgorithm::Ring => vec![Algorithm::Ring],
        ScalingAlgorithm::Tree => vec![Algorithm::Tree],
    }
}

fn profile(args: &ScalingArgs) -> Result<LinkProfile, Failure> {
    let links = shipped().map_err(Failure::usage)?;
    let named = links.iter().find(|link| link.name == args.link);
    match (named, &args.subject) {
        (Some(link), None) => Ok(link.clone()),
        (Some(_), Some(_)) => Err(Failure::usage(format!(
            "--subject chooses rows of a file, and --link {} is none; leave it out",
            args.link
        ))),
        (None, subject) => from_file(&args.link, subject.as_deref(), &links),
    }
}

#[derive(Deserialize)]
struct BenchFile {
    rows: Vec<BenchRow>,
}

#[derive(Deserialize)]
struct BenchRow {
    bench: String,
    subject: String,
    bytes: Option<u64>,
    p50: f64,
}

/// The gates of one subject in what `ds4 bench gate --format json` wrote.
fn from_file(
    file: &str,
    subject: Option<&str>,
    links: &[LinkProfile],
) -> Result<LinkProfile, Failure> {
    let wrong = |problem: String| Failure::usage(format!("{file}: {problem}"));
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    if !Path::new(file).exists() {
        return Err(Failure::usage(format!(
            "--link '{file}' is neither a link ({}) nor a file",
            names.join(", ")
        )));
    }
    let bytes = read_file(Path::new(file), "the measurement").map_err(Failure::usage)?;
    let bench: BenchFile = serde_json::from_slice(&bytes).map_err(|error| {
        wrong(format!(
            "{error}; give what ds4 bench gate --format json wrote"
        ))
    })?;
    let of_link = |name: &str| {
        let kind = name.split(',').next().unwrap_or(name);
        let like = |link: &&LinkProfile| !link.subject.is_empty() && link.subject == kind;
        links.iter().find(like)
    };
    let gates = bench
        .rows
        .iter()
        .filter(|row| row.bench.starts_with("gate ") && of_link(&row.subject).is_some());
    let gates: Vec<&BenchRow> = gates.collect();
    let mut subjects: Vec<&str> = gates.iter().map(|row| row.subject.as_str()).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let chosen =
        match (subject, subjects.as_slice()) {
            (Some(name), _) if subjects.contains(&name) => name,
            (None, [one]) => one,
            (_, []) => return Err(wrong(
                "no gate of a link was timed there; give what ds4 bench gate --format json wrote"
                    .to_owned(),
            )),
            (_, several) => {
                return Err(wrong(format!(
                    "choose whose gates are meant: --subject '{}'",
                    several.join("', '")
                )));
            }
        };
    let rows = gates.iter().filter(|row| row.subject == chosen);
    let mut points: Vec<PointNs> = rows
        .filter_map(|row| {
            Some(PointNs {
                bytes: row.bytes?,
                ns: whole_ns(row.p50)?,
            })
        })
        .collect();
    points.sort_unstable_by_key(|point| point.bytes);
    points.dedup_by_key(|point| point.bytes);
    if points.len() < 2 || points.len() > MAX_POINTS {
        return Err(wrong(format!(
            "{} sizes of '{chosen}' with a time; the model needs from 2 to {MAX_POINTS}",
            points.len()
        )));
    }
    let like = of_link(chosen).ok_or_else(|| wrong("no such link".to_owned()))?;
    Ok(like.with_points(file, format!("the machine of {chosen}"), points))
}

/// A time from the file in whole nanoseconds, from 1 to an hour.
fn whole_ns(ns: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range"
    )]
    (1.0..3.6e12).contains(&ns).then(|| ns.round() as u64)
}

fn us(ps: u64) -> String {
    let thousandths = ps / 1000;
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

fn ms(ps: u64) -> String {
    us(ps / 1000)
}

fn percent(ppm: i64) -> String {
    let tenths = ppm.unsigned_abs() / 1000;
    let sign = if ppm < 0 { '-' } else { '+' };
    format!("{sign}{}.{} %", tenths / 10, tenths % 10)
}

fn text(args: &ScalingArgs, profile: &LinkProfile, rows: &[Row], residuals: &[Residual]) -> String {
    let name = printable(&profile.name);
    let (points, origin) = (profile.point.len(), &profile.origin);
    let first = format!(
        "model, not a measurement: {name} from {points} {origin} times of two ranks ({}, {}{})",
        printable(&profile.device),
        printable(&profile.source),
        if profile.date.is_empty() {
            String::new()
        } else {
            format!(", {}", profile.date)
        },
    );
    let gates = format!(
        "{} gates of {} a token; formula and simulated messages agree, every sum verified",
        args.gates,
        format_bytes(args.bytes)
    );
    let mut sections = vec![wrapped(&first, "  "), wrapped(&gates, "  "), String::new()];
    sections.push(costs_table(args, rows));
    sections.push(wrapped(
        "us a gate; pays from: the least compute of a token on one rank, in ms, from which this many \
         ranks are quicker than the line above (the first: than one rank), if compute divides evenly",
        "  ",
    ));
    if let Some(most) = profile.ranks_max {
        sections.push(wrapped(
            &format!("* such a link joins at most {most} ranks: arithmetic, not a machine"),
            "  ",
        ));
    }
    sections.push(String::new());
    for row in rows {
        let changes = row.changes.iter().map(|(bytes, algorithm)| {
            format!("{} from {}", algorithm.name(), format_bytes(*bytes))
        });
        let changes: Vec<String> = changes.collect();
        sections.push(format!(
            "cheapest on {} ranks: {}",
            row.ranks,
            changes.join(", ")
        ));
    }
    sections.push(String::new());
    sections.push(residual_table(residuals));
    for (what, figure, source) in assumptions(profile) {
        sections.push(wrapped(&format!("{what} {figure}: {source}"), "  "));
    }
    sections.join("\n") + "\n"
}

fn costs_table(args: &ScalingArgs, rows: &[Row]) -> String {
    let mut head = vec!["ranks".to_owned()];
    head.extend(
        algorithms(args)
            .iter()
            .map(|algorithm| algorithm.name().to_owned()),
    );
    head.extend(["best", "token ms", "pays from"].map(str::to_owned));
    let lines = rows.iter().map(|row| {
        let mark = if row.beyond { "*" } else { "" };
        let mut line = vec![format!("{}{mark}", row.ranks)];
        line.extend(row.costs.iter().map(|(_, ps)| us(*ps)));
        line.push(row.best.0.name().to_owned());
        line.push(ms(token_ps(args, row.best.1)));
        line.push(row.pays_from_ps.map_or("-".to_owned(), ms));
        line
    });
    table(&std::iter::once(head).chain(lines).collect::<Vec<_>>())
}

fn residual_table(residuals: &[Residual]) -> String {
    let head = [
        "two ranks",
        "timed us",
        "model us",
        "error",
        "left out",
        "error",
    ];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for seen in residuals {
        let held_out = seen.held_out_ppm();
        lines.push(vec![
            format_bytes(seen.point.bytes),
            us(seen.point.ps),
            us(seen.fitted_ps),
            percent(seen.fitted_ppm()),
            seen.held_out_ps.map_or("-".to_owned(), us),
            held_out.map_or("-".to_owned(), percent),
        ]);
    }
    let (fitted, held_out) = within(residuals);
    let count = residuals.len();
    format!(
        "{}within 15 %: {fitted} of {count} with all points, {held_out} of {count} where the model \
         had not seen the point\n",
        table(&lines)
    )
}

/// How many points the model is near to, fitted with and without them.
fn within(residuals: &[Residual]) -> (usize, usize) {
    let near = |ppm: i64| ppm.unsigned_abs() <= WITHIN_PPM;
    let fitted = residuals
        .iter()
        .filter(|seen| near(seen.fitted_ppm()))
        .count();
    let held_out = residuals
        .iter()
        .filter(|seen| seen.held_out_ppm().is_some_and(near));
    (fitted, held_out.count())
}

fn assumptions(profile: &LinkProfile) -> [(&'static str, String, &str); 3] {
    [
        (
            "once a gate",
            format!("{} ns", profile.once_ns),
            &profile.once_source,
        ),
        (
            "next message after",
            format!("{}/1000 of the base", profile.gap_permille),
            &profile.gap_source,
        ),
        (
            "adding a MiB",
            format!("{} ns", profile.add_ns_per_mib),
            &profile.add_source,
        ),
    ]
}

fn value(
    args: &ScalingArgs,
    profile: &LinkProfile,
    link: &Link,
    rows: &[Row],
    residuals: &[Residual],
) -> Value {
    let ranges = link.ranges.iter().map(|range| {
        json!({ "last_bytes": range.last_bytes, "base_ps": range.line.base_ps,
                "ps_per_mib": range.line.ps_per_mib })
    });
    let points = residuals.iter().map(|seen| {
        json!({ "bytes": seen.point.bytes, "measured_ps": seen.point.ps,
                "fitted_ps": seen.fitted_ps, "fitted_error_ppm": seen.fitted_ppm(),
                "held_out_ps": seen.held_out_ps, "held_out_error_ppm": seen.held_out_ppm() })
    });
    let (fitted, held_out) = within(residuals);
    json!({
        "model": true,
        "link": {
            "name": profile.name, "device": profile.device, "origin": profile.origin,
            "date": profile.date, "source": profile.source, "ranks_max": profile.ranks_max,
            "ranges": ranges.collect::<Vec<_>>(),
            "once_ns": profile.once_ns, "once_source": profile.once_source,
            "gap_permille": profile.gap_permille, "gap_source": profile.gap_source,
            "add_ns_per_mib": profile.add_ns_per_mib, "add_source": profile.add_source,
        },
        "bytes": args.bytes,
        "gates": args.gates,
        "rows": rows.iter().map(|row| row_value(args, row)).collect::<Vec<_>>(),
        "points": points.collect::<Vec<_>>(),
        "within_15_percent": { "fitted": fitted, "held_out": held_out, "points": residuals.len() },
    })
}

fn row_value(args: &ScalingArgs, row: &Row) -> Value {
    let costs = row.costs.iter().map(|(algorithm, ps)| {
        json!({ "algorithm": algorithm.name(), "gate_ps": ps, "simulated_ps": ps,
                "token_ps": token_ps(args, *ps), "messages": algorithm.messages(row.ranks) })
    });
    let changes = row
        .changes
        .iter()
        .map(|(bytes, algorithm)| json!({ "from_bytes": bytes, "algorithm": algorithm.name() }));
    json!({
        "ranks": row.ranks,
        "beyond_link": row.beyond,
        "costs": costs.collect::<Vec<_>>(),
        "best": row.best.0.name(),
        "gate_ps": row.best.1,
        "token_ps": token_ps(args, row.best.1),
        "pays_from_ps": row.pays_from_ps,
        "cheapest": changes.collect::<Vec<_>>(),
    })
}
