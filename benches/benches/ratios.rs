//! Every bench with its peers in turns, as times and ratios.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use ds4_benches::{measure, options_from, peers::more_peers, say};

fn main() -> ExitCode {
    let options = options_from(std::env::args().skip(1));
    // Ctrl-C ends this process: every row is printed as soon as it is there.
    let never = AtomicBool::new(false);
    match measure(&options, more_peers(), &never, |row| say(&row.to_string())) {
        Ok(measured) if measured.rows.is_empty() => {
            say("nothing was measured: no bench has that name");
            ExitCode::from(4)
        }
        Ok(_) => ExitCode::SUCCESS,
        Err(why) => {
            say(&why);
            ExitCode::FAILURE
        }
    }
}
