//! `ds4 keygen`: a key for the ranks of a tensor-parallel run.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use ds4_engine::tp::trust::Key;
use serde_json::json;

use crate::cli::KeygenArgs;
use crate::exit::Exit;
use crate::output::{Console, Failure, Outcome};

/// Where the system's random bytes come from.
const RANDOM: &str = "/dev/urandom";

/// Writes the key; it is printed nowhere.
pub(super) fn run(args: &KeygenArgs, console: &Console) -> Result<Outcome, Failure> {
    let path = args.output.display();
    let key = random_key()
        .map_err(|error| Failure::failed(format!("no random bytes from {RANDOM}: {error}")))?;
    write_new(&args.output, &format!("{}\n", key.to_hex())).map_err(|error| {
        Failure::usage(if error.kind() == io::ErrorKind::AlreadyExists {
            format!("{path} exists; a key is never overwritten, name another file")
        } else {
            format!("the key could not be written to {path}: {error}")
        })
    })?;
    let text = format!("key written to {path}; copy it to the other ranks by a safe way\n");
    let value = json!({ "output": path.to_string() });
    Ok(console.outcome(Exit::Ok, "keygen", text, value))
}

fn random_key() -> io::Result<Key> {
    let mut bytes = [0; 32];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    Ok(Key::new(bytes))
}

/// Creates the file with its mode at once, so that nobody else can open it in between.
fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.inspect_err(|_| {
        // Half a key is none.
        let _ = std::fs::remove_file(path);
    })
}
