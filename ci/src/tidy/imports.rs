//! What modules may name, by their place in the tree.

use super::code_of;

/// Modules that decide without a device, a socket, a clock or chance.
const PURE: [&str; 5] = [
    "engine/src/alloc/placement",
    "engine/src/alloc/pool",
    "engine/src/selection",
    "engine/src/tp",
    "harness/src/planning/layers",
];

/// What pure modules do not name.
const IMPURE: [&str; 10] = [
    "crate::backend",
    "super::backend",
    "Backend",
    "std::net",
    "std::fs",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "RandomState",
    "rand::",
];

/// (where, what is not named there, why).
const FORBIDDEN: [(&str, &[&str], &str); 4] = [
    (
        "engine/src/alloc",
        &["crate::tp", "backend::driver"],
        "the allocator knows the trait only, and nothing of the ranks",
    ),
    (
        "engine/src/tp",
        &["crate::alloc", "backend::driver"],
        "the ranks know the trait only, and nothing of the allocator",
    ),
    (
        "engine/src/backend",
        &["crate::alloc", "crate::tp"],
        "a backend knows nothing above it",
    ),
    (
        "sim/src",
        &["ds4_engine::alloc"],
        "the simulator is a backend: it knows nothing above it",
    ),
];

/// Breaches in one file.
pub(super) fn check(path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut look = |needles: &[&str], why: &str| {
        for (number, line) in text.lines().enumerate() {
            let code = code_of(line);
            for needle in needles.iter().filter(|needle| names(code, needle)) {
                problems.push(format!("{path}:{}: names {needle}: {why}", number + 1));
            }
        }
    };
    // Tests of pure modules may read their expectations from files.
    if PURE.iter().any(|module| is_in(path, module)) && !path.ends_with("tests.rs") {
        look(&IMPURE, "this module is pure");
    }
    for (module, needles, why) in FORBIDDEN {
        if is_in(path, module) {
            look(needles, why);
        }
    }
    problems
}

/// Whether a file is a module or below it: `a/b.rs` and `a/b/c.rs` are in `a/b`, `a/bc.rs` is not.
fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Whether code names something as a whole word.
fn names(code: &str, needle: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(needle).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + needle.len()..].chars().next();
        let ends_open = needle.ends_with(':');
        !before.is_some_and(is_word) && (ends_open || !after.is_some_and(is_word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pure_module_that_names_a_backend_or_a_clock_is_a_breach() {
        let text = "use crate::device::DeviceId;\nuse crate::backend::Backend;\n";
        let problems = check("engine/src/alloc/pool/mod.rs", text);
        assert!(
            problems[0].starts_with("engine/src/alloc/pool/mod.rs:2:"),
            "{problems:?}"
        );
        assert!(!check("engine/src/tp/session/mod.rs", "let now = Instant::now();").is_empty());
        assert!(check("engine/src/tp/session/mod.rs", "fn poll(now: Instant) {}").is_empty());
    }

    #[test]
    fn comments_longer_words_and_other_modules_are_no_breach() {
        for (path, text) in [
            (
                "engine/src/alloc/pool/mod.rs",
                "// a Backend is not named here",
            ),
            ("engine/src/alloc/pool/mod.rs", "struct BackendLess;"),
            ("engine/src/alloc/mod.rs", "use crate::backend::Backend;"),
            ("engine/src/tp/slab_tests.rs", "use std::fs;"),
            (
                "engine/src/alloc/pool_table.rs",
                "use crate::backend::Backend;",
            ),
        ] {
            assert!(check(path, text).is_empty(), "{path}: {text}");
        }
    }

    #[test]
    fn every_place_that_a_rule_names_is_there() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let there = |place: &str| {
            [format!("{root}/{place}"), format!("{root}/{place}.rs")]
                .iter()
                .any(|path| std::path::Path::new(path).exists())
        };
        for place in PURE
            .into_iter()
            .chain(FORBIDDEN.map(|(place, ..)| place))
            .chain(["engine/src/backend/driver"])
        {
            assert!(there(place), "{place}");
        }
    }

    #[test]
    fn layers_do_not_look_up() {
        assert!(
            !check(
                "engine/src/alloc/mod.rs",
                "use crate::backend::driver::Driver;"
            )
            .is_empty()
        );
        assert!(!check("engine/src/tp/coding.rs", "use crate::alloc::Handle;").is_empty());
        assert!(!check("sim/src/ledger.rs", "use ds4_engine::alloc::Handle;").is_empty());
    }
}
