//! Rules on the source tree that no compiler checks: who may import whom, what files look like,
//! and that the README's code map is complete.

mod edges;
mod files;
mod imports;
mod map;

use std::path::{Path, PathBuf};

/// Checks every rule; returns one sentence for each breach, sorted.
///
/// `metadata` is what `cargo metadata --no-deps --format-version 1` printed.
#[must_use]
pub fn check(root: &Path, metadata: &str) -> Vec<String> {
    let mut problems = edges::check(metadata);
    for path in rust_files(root) {
        let shown = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .replace('\\', "/");
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                problems.extend(files::check(&shown, &text));
                problems.extend(imports::check(&shown, &text));
            }
            Err(error) => problems.push(format!("{shown}: cannot be read ({error})")),
        }
    }
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    problems.extend(map::check(root, &readme));
    problems.sort();
    problems
}

/// All `.rs` files below a folder, in order of their paths; build outputs and hidden folders left
/// out.
#[must_use]
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for (path, is_folder) in entries(&folder) {
            if is_folder {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// What a folder holds, as (path, is a folder), in order.
fn entries(folder: &Path) -> Vec<(PathBuf, bool)> {
    let Ok(listing) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut entries: Vec<(PathBuf, bool)> = listing
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !name.starts_with('.') && name != "target" && !name.starts_with("mutants.out")
        })
        .map(|entry| {
            (
                entry.path(),
                entry.file_type().is_ok_and(|kind| kind.is_dir()),
            )
        })
        .collect();
    entries.sort();
    entries
}

/// The code of a line, its comment cut off; a line that is all comment gives nothing.
fn code_of(line: &str) -> &str {
    match line.find("//") {
        // The `//` of an address in a string is no comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Program, root};

    #[test]
    fn this_source_tree_keeps_every_rule() {
        let metadata = Program::new("cargo metadata --no-deps --format-version 1")
            .output()
            .unwrap();
        let problems = check(&root(), &metadata);
        assert!(problems.is_empty(), "\n{}", problems.join("\n"));
    }

    #[test]
    fn comments_are_no_code() {
        assert_eq!(code_of("let a = 1; // crate::backend"), "let a = 1; ");
        assert_eq!(code_of("//! crate::backend"), "");
        assert_eq!(code_of("let a = \"http://b\";"), "let a = \"http://b\";");
    }

    #[test]
    fn hidden_folders_and_build_outputs_are_not_searched() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "src/a.rs",
            "target/b.rs",
            ".git/c.rs",
            "src/d/mod.rs",
            "src/e.txt",
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let names: Vec<PathBuf> = rust_files(folder.path())
            .iter()
            .map(|path| path.strip_prefix(folder.path()).unwrap().to_path_buf())
            .collect();
        assert_eq!(
            names,
            [PathBuf::from("src/a.rs"), PathBuf::from("src/d/mod.rs")]
        );
    }
}
