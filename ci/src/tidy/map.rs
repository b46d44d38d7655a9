//! The README's code map: every module of every crate is in its crate's part.

use std::path::Path;

use super::entries;

/// The crates' folders, in the order of the map.
const CRATES: [&str; 9] = [
    "kernels",
    "engine",
    "engine/capi",
    "sim",
    "sim/driver",
    "sim/embedded",
    "harness",
    "benches",
    "ci",
];

/// Files that stand for their folder.
const OPENERS: [&str; 3] = ["lib.rs", "main.rs", "mod.rs"];

/// Modules that the code map of `readme` does not name.
pub(super) fn check(root: &Path, readme: &str) -> Vec<String> {
    let Some(map) = code_map(readme) else {
        return vec!["README.md: there is no heading 'Code map'".to_owned()];
    };
    let mut problems = Vec::new();
    for folder in CRATES {
        let modules = modules(&root.join(folder).join("src"));
        let part = part_of(&map, folder);
        problems.extend(
            modules
                .iter()
                .filter(|module| !has_word(&part, module))
                .map(|module| {
                    format!("README.md: the code map's part on {folder} does not name '{module}'")
                }),
        );
    }
    problems
}

/// The lines below the heading 'Code map', to the next heading of its level or above.
fn code_map(readme: &str) -> Option<Vec<&str>> {
    let level = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let mut lines = readme.lines();
    let heading =
        lines.find(|line| level(line) > 0 && line.to_ascii_lowercase().contains("code map"))?;
    let top = level(heading);
    // A comment in a code block begins with one `#` and a space as a heading does; a map has none.
    Some(
        lines
            .take_while(|line| level(line) == 0 || level(line) > top)
            .collect(),
    )
}

/// The lines from the first that begins with `folder/` to the next that begins with another crate.
fn part_of(map: &[&str], folder: &str) -> String {
    let lines = map
        .iter()
        .skip_while(|line| opened_by(line) != Some(folder));
    let lines: Vec<&str> = lines
        .take_while(|line| opened_by(line).is_none_or(|crate_folder| crate_folder == folder))
        .copied()
        .collect();
    lines.join("\n")
}

/// The crate whose part a line opens: of crates inside one another the inner one.
fn opened_by(line: &str) -> Option<&'static str> {
    let bare = line.trim_start_matches(|c: char| !c.is_alphanumeric());
    let opens = |folder: &&str| {
        bare.strip_prefix(*folder)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    CRATES
        .into_iter()
        .filter(opens)
        .max_by_key(|folder| folder.len())
}

/// The modules directly below a folder and the folders below those, by name.
fn modules(src: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for (path, is_folder) in entries(src) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if is_folder {
            names.push(name);
            let below = entries(&path)
                .into_iter()
                .filter(|(_, is_folder)| *is_folder);
            names
                .extend(below.filter_map(|(path, _)| {
                    Some(path.file_name()?.to_string_lossy().into_owned())
                }));
        } else if let Some(stem) = name.strip_suffix(".rs")
            && !OPENERS.contains(&name.as_str())
            && stem != "tests"
            && !stem.ends_with("_tests")
        {
            names.push(stem.to_owned());
        }
    }
    names
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-')
        .any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        folder
    }

    const FILES: [&str; 5] = [
        "engine/src/lib.rs",
        "engine/src/device.rs",
        "engine/src/alloc/pool/mod.rs",
        "sim/src/device.rs",
        "sim/src/device_tests.rs",
    ];

    #[test]
    fn a_complete_map_is_no_breach() {
        let folder = tree(&FILES);
        let readme = "# ds4\n## Code map\n```\nengine/\n  device.rs  devices\n  alloc/ and its \
                      pool/\nsim/\n  device.rs  simulated\n```\n## More\n";
        assert_eq!(check(folder.path(), readme), Vec::<String>::new());
    }

    #[test]
    fn a_module_missing_from_its_own_crates_part_is_a_breach() {
        let folder = tree(&FILES);
        let readme = "## Code map\n- `engine/`: device, alloc\n- `sim/`: pool\n## More\ndevice\n";
        assert_eq!(
            check(folder.path(), readme),
            [
                "README.md: the code map's part on engine does not name 'pool'",
                "README.md: the code map's part on sim does not name 'device'",
            ]
        );
    }

    #[test]
    fn a_readme_without_a_map_is_a_breach() {
        assert_eq!(check(tree(&FILES).path(), "# ds4\n").len(), 1);
    }
}
