//! The C header: written from the sources of the C interface and compared with what is checked in.

use std::path::Path;

use crate::exit;
use crate::step::{Failure, root, say, step};

const CRATE: &str = "engine/capi";
const HEADER: &str = "engine/capi/include/ds4.h";
/// The files whose items the header declares, in its order.
const SOURCES: [&str; 3] = ["types.rs", "api.rs", "torch.rs"];
const AGAIN: &str = "cargo ci header";

/// Compares the header, or writes it with `save`.
///
/// # Errors
/// It differs, or cannot be made.
pub fn run(save: bool) -> Result<(), Failure> {
    step("C header", || {
        let root = root();
        let text = generate(&root)?;
        let path = root.join(HEADER);
        if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        if save {
            std::fs::write(&path, text).map_err(|error| broken(&format!("{HEADER}: {error}")))?;
            say(&format!("wrote {HEADER}"));
            return Ok(());
        }
        let what = format!("{HEADER} is not what {CRATE}/src says; '{AGAIN} --save' renews it");
        Err(broken(&what))
    })
}

fn generate(root: &Path) -> Result<String, Failure> {
    let folder = root.join(CRATE);
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).map_err(|why| broken(&why))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder.join("src").join(source));
    }
    let bindings = builder
        .generate()
        .map_err(|error| broken(&error.to_string()))?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(for_c(&String::from_utf8_lossy(&text)))
}

/// Headings of Rust's comments in the words of a C header.
fn for_c(text: &str) -> String {
    text.replace("# Safety\n", "Requires:\n")
}

fn broken(what: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{what}."), AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_that_is_checked_in_is_the_sources() {
        let text = generate(&root()).unwrap();
        let saved = std::fs::read_to_string(root().join(HEADER)).unwrap();
        assert!(text == saved, "'{AGAIN} --save' renews {HEADER}");
    }
}
