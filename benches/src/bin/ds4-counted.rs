//! Runs counted scenarios: exact counts of the work, and one scenario at a time for an instruction
//! counter that collects inside [`counted_region`] only.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ds4_benches::say;
use ds4_harness::bench::{Counted, count_all, counted_names, open_counted};

const USAGE: &str = "\
ds4-counted counts     exact counts of every scenario, as JSON
ds4-counted list       the scenarios that can be run alone
ds4-counted run NAME   sets one up and runs it; prints its number of operations";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["counts"] => counts(),
        ["list"] => Ok(counted_names().join("\n")),
        ["run", name] => open_counted(name).map(|mut counted| {
            let refused = counted_region(&mut counted);
            format!("{{\"ops\":{},\"refused\":{refused}}}", counted.ops.len())
        }),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(why) => {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{why}");
            ExitCode::from(2)
        }
    }
}

fn counts() -> Result<String, String> {
    serde_json::to_string_pretty(&count_all()?).map_err(|error| error.to_string())
}

/// Everything inside is counted, nothing else.
#[inline(never)]
fn counted_region(counted: &mut Counted) -> u64 {
    counted.runner.run(&counted.ops)
}
