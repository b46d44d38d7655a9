//! What a source file looks like.

use super::code_of;

/// The most lines of a file; a longer one is split by noun.
const MAX_LINES: usize = 800;

/// Left-overs, each written in two parts so that this file is not one.
const LEFT_OVERS: [(&str, &str); 4] = [
    (
        concat!("to", "do!("),
        "unfinished work is an issue, not a panic",
    ),
    (
        concat!("unimplement", "ed!("),
        "unfinished work is an issue, not a panic",
    ),
    (concat!("db", "g!("), "a debugging aid"),
    (
        concat!("#[ign", "ore"),
        "a test that does not run proves nothing: delete it or fix it",
    ),
];

/// Breaches in one file.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES {
        problems.push(format!(
            "{path}: {lines} lines, more than {MAX_LINES}: split it by noun"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        for (needle, why) in LEFT_OVERS {
            if code_of(line).contains(needle) {
                problems.push(format!("{path}:{}: {needle}: {why}", number + 1));
            }
        }
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if matches!(name, "mod.rs" | "lib.rs" | "main.rs") && !opens_with_docs(text) {
        problems.push(format!(
            "{path}: does not open with //! docs: say its purpose"
        ));
    }
    problems
}

/// Docs come first; inner attributes may stand before them.
fn opens_with_docs(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .find(|line| !line.starts_with("#!["))
        .is_some_and(|line| line.starts_with("//!"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_a_breach() {
        assert!(check("a.rs", &"\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(check("a.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
    }

    #[test]
    fn left_overs_are_found_with_their_line_and_not_in_comments() {
        for (needle, _) in LEFT_OVERS {
            let problems = check("a.rs", &format!("fn a() {{}}\n{needle}"));
            assert!(problems[0].starts_with("a.rs:2:"), "{problems:?}");
            assert!(check("a.rs", &format!("// {needle}")).is_empty());
        }
    }

    #[test]
    fn module_folders_and_crates_open_with_docs() {
        assert!(check("a/mod.rs", "//! Purpose.\nmod b;").is_empty());
        assert!(check("a/lib.rs", "#![forbid(unsafe_code)]\n//! Purpose.").is_empty());
        assert_eq!(check("a/mod.rs", "mod b;\n//! Late.").len(), 1);
        assert_eq!(check("a/mod.rs", "").len(), 1);
        assert!(check("a/b.rs", "mod b;").is_empty());
    }
}
