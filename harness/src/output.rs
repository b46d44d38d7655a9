//! Where results and remarks go: results to standard output, everything else to standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ds4_engine::alloc::{Refusal, RefusalCause};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::Format;
use crate::exit::Exit;
use crate::printable::{printable, printable_json, printable_lines};
use crate::signals;

/// The version of every JSON object that the command prints.
pub const SCHEMA: u32 = 1;

/// Why a command could not do its work: one sentence and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What is wrong, where, and what to do.
    pub message: String,
}

impl Failure {
    /// The command line or an input is wrong.
    pub fn usage(message: impl ToString) -> Self {
        Self {
            exit: Exit::Usage,
            message: message.to_string(),
        }
    }

    /// The work was begun and failed.
    pub fn failed(message: impl ToString) -> Self {
        Self {
            exit: Exit::CheckFailed,
            message: message.to_string(),
        }
    }
}

/// What a command produced.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The exit code.
    pub exit: Exit,
    /// The text for the chosen format, with a final newline.
    pub text: String,
}

/// The parts of a command's work that the user sees while it goes on.
#[derive(Clone, Debug)]
pub struct Console {
    /// The chosen format.
    pub format: Format,
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Console {
    /// Takes Ctrl-C, termination and hang-up as the wish for a partial result; a second one ends
    /// the process, and what the parent ignores stays ignored.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let console = Self::unwatched(format);
        let watched = signals::watch(&console.stop);
        console.told(watched)
    }

    /// As [`Console::new`] for a command that runs another program: no signal ends the process, and
    /// [`Console::take_signal`] has the one to pass on.
    #[must_use]
    pub fn of_parent(format: Format) -> Self {
        let console = Self::unwatched(format);
        let watched = signals::watch_for_child(&console.stop, &console.signal);
        console.told(watched)
    }

    fn unwatched(format: Format) -> Self {
        Self {
            format,
            stop: Arc::default(),
            signal: Arc::default(),
        }
    }

    fn told(self, watched: io::Result<()>) -> Self {
        if let Err(error) = watched {
            self.remark(&format!(
                "Ctrl-C will end the run without a result ({error})"
            ));
        }
        self
    }

    /// The last signal since this was asked, once, in a command that runs another program.
    #[must_use]
    pub fn take_signal(&self) -> Option<i32> {
        let number = self.signal.swap(0, Ordering::Relaxed);
        i32::try_from(number).ok().filter(|number| *number != 0)
    }

    /// Set once the user wants the command to end.
    #[must_use]
    pub fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// Whether the user wants the command to end.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says something that is not part of the result.
    pub fn remark(&self, message: &str) {
        remark(message);
    }

    /// A progress bar over `length` steps; invisible unless standard error is a terminal.
    #[must_use]
    pub fn progress(&self, length: u64, what: &'static str) -> ProgressBar {
        if !io::stderr().is_terminal() || std::env::var_os("TERM").is_some_and(|t| t == "dumb") {
            return ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        }
        let bar = ProgressBar::new(length).with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }

    /// The result as text or as one JSON object with the schema and the command's name.
    #[must_use]
    pub fn outcome(&self, exit: Exit, command: &str, text: String, value: Value) -> Outcome {
        let text = match self.format {
            Format::Text | Format::Junit => printable_lines(&text).into_owned(),
            Format::Json => object(command, exit, value),
        };
        Outcome { exit, text }
    }
}

fn object(command: &str, exit: Exit, value: Value) -> String {
    let mut whole = json!({ "schema": SCHEMA, "command": command, "exit": exit.code() });
    if let (Some(whole), Value::Object(parts)) = (whole.as_object_mut(), value) {
        whole.extend(parts);
    }
    format!("{}\n", printable_json(&format!("{whole:#}")))
}

/// A refusal as data beside its sentence: what was asked for, and what each device tried had.
#[must_use]
pub fn refusal_value(refusal: &Refusal) -> Value {
    let devices = match &refusal.cause {
        RefusalCause::Orphaned { .. } | RefusalCause::Excluded { .. } => Vec::new(),
        RefusalCause::Tried(candidates) => candidates
            .iter()
            .map(|tried| {
                json!({ "device": tried.device.index(), "used_bytes": tried.used_bytes,
                        "budget_bytes": tried.budget_bytes, "reason": tried.reason.label() })
            })
            .collect(),
    };
    json!({ "message": refusal.to_string(), "bytes": refusal.bytes, "mask": refusal.mask.0,
            "devices": devices })
}

/// `value` with one more field, if it is an object.
#[must_use]
pub fn with_field(mut value: Value, name: &str, field: impl Into<Value>) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.insert(name.to_owned(), field.into());
    }
    value
}

/// Says something on standard error.
pub fn remark(message: &str) {
    // A closed standard error must not end the work.
    let _ = writeln!(io::stderr(), "ds4: {}", printable(message));
}

/// The JSON object of a command that could not do its work.
#[must_use]
pub fn failure_object(command: &str, failure: &Failure) -> String {
    object(
        command,
        failure.exit,
        json!({ "error": { "message": failure.message } }),
    )
}

/// Writes to standard output; a reader that has gone away is not an error.
///
/// # Errors
/// Any other error of writing.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The most columns of a table or a wrapped sentence.
pub const WIDTH: usize = 100;

/// No column of a table is cut to less.
const LEAST_CELL: usize = 12;

/// A table with left-aligned first and right-aligned other columns.
///
/// Cells of the widest columns are cut, with an ellipsis, so that rows keep to [`WIDTH`].
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter()
                .map(|cell| printable(cell).into_owned())
                .collect()
        })
        .collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let mut widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    narrow(&mut widths);
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            let cell = cut(cell, *width);
            let pad = " ".repeat(width - cell.chars().count());
            // Writing to a string cannot fail.
            let _ = if column == 0 {
                write!(line, "{gap}{cell}{pad}")
            } else {
                write!(line, "{gap}{pad}{cell}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn narrow(widths: &mut [usize]) {
    loop {
        let whole = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let excess = whole.saturating_sub(WIDTH);
        match widths.iter_mut().max() {
            Some(widest) if excess > 0 && *widest > LEAST_CELL => {
                *widest = widest.saturating_sub(excess).max(LEAST_CELL);
            }
            _ => return,
        }
    }
}

fn cut(cell: &str, width: usize) -> String {
    if cell.chars().count() <= width {
        return cell.to_owned();
    }
    cell.chars().take(width - 1).chain(['…']).collect()
}

/// As [`table`], with the columns that do not fit beside the first one in further tables below.
#[must_use]
pub fn table_in_parts(rows: &[Vec<String>]) -> String {
    let cells = rows.iter().flat_map(|row| row.iter().skip(1));
    let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
    let heads = rows.iter().filter_map(|row| row.first());
    let head = heads.map(|cell| cell.chars().count()).max().unwrap_or(0);
    let columns = rows
        .iter()
        .map(Vec::len)
        .max()
        .unwrap_or(0)
        .saturating_sub(1);
    let at_once = (WIDTH.saturating_sub(head) / (widest + 2)).max(1);
    let parts = (0..columns.max(1)).step_by(at_once).map(|from| {
        let part = |row: &Vec<String>| {
            let cells = row.iter().skip(1 + from).take(at_once);
            row.iter().take(1).chain(cells).cloned().collect()
        };
        table(&rows.iter().map(part).collect::<Vec<_>>())
    });
    parts.collect::<Vec<_>>().join("\n")
}

/// A sentence in lines of at most [`WIDTH`] columns; lines after the first begin with `indent`.
#[must_use]
pub fn wrapped(sentence: &str, indent: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for (place, word) in sentence.split(' ').enumerate() {
        let length = word.chars().count();
        if place > 0 && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(indent);
            column = indent.chars().count();
        } else if place > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

/// A count with its noun: `1 layer`, `2 layers`.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_a_table_line_up() {
        let rows = [["device", "used"], ["gpu0", "1 GiB"], ["gpu10", "512 MiB"]];
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|row| row.iter().map(ToString::to_string).collect())
            .collect();
        assert_eq!(
            table(&rows),
            "device     used\ngpu0      1 GiB\ngpu10   512 MiB\n"
        );
    }

    #[test]
    fn no_table_and_no_sentence_is_wider_than_it_may_be() {
        let long = vec!["gpu0".to_owned(), "name ".repeat(30), "24 GiB".to_owned()];
        let text = table(&[long]);
        assert!(
            text.contains('…') && text.trim_end().chars().count() == WIDTH,
            "{text}"
        );
        let matrix: Vec<Vec<String>> = (0..32)
            .map(|row| (0..33).map(|column| format!("gpu{row}{column}")).collect())
            .collect();
        let text = table_in_parts(&matrix);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.contains("gpu032") && text.contains("gpu3132"));
        let sentence = wrapped(&"word ".repeat(60), "  ");
        assert!(
            sentence.lines().all(|line| line.len() <= WIDTH),
            "{sentence}"
        );
        assert_eq!(sentence.split_whitespace().count(), 60);
    }

    #[test]
    fn a_failure_is_an_object_that_parses() {
        let text = failure_object("replay", &Failure::usage("no such \"file\""));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["exit"], 2);
        assert_eq!(value["error"]["message"], "no such \"file\"");
    }
}
