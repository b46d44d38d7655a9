//! Where results and remarks go: results to standard output, everything else to standard error.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::Format;
use crate::exit::Exit;

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
}

impl Console {
    /// Takes Ctrl-C as the wish for a partial result; a second one ends the process.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let handler = ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(i32::from(Exit::Interrupted.code()));
            }
        });
        let console = Self { format, stop };
        if let Err(error) = handler {
            console.remark(&format!(
                "Ctrl-C will end the run without a result ({error})"
            ));
        }
        console
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
        // A closed standard error must not end the work.
        let _ = writeln!(io::stderr(), "ds4: {message}");
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
            Format::Text | Format::Junit => text,
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
    format!("{whole:#}\n")
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

/// A table with left-aligned first and right-aligned other columns.
#[must_use]
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let pad = " ".repeat(width - cell.chars().count());
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
    fn a_failure_is_an_object_that_parses() {
        let text = failure_object("replay", &Failure::usage("no such \"file\""));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["exit"], 2);
        assert_eq!(value["error"]["message"], "no such \"file\"");
    }
}
