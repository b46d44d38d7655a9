//! Which crate may depend on which.

use serde_json::Value;

/// Each crate with the crates of the workspace that it may depend on, in tests too.
const ALLOWED: [(&str, &[&str]); 10] = [
    ("ds4-kernels", &[]),
    ("ds4-engine", &["ds4-kernels"]),
    ("ds4-sim", &["ds4-engine", "ds4-kernels"]),
    // Its tests run on the embedded libraries.
    (
        "ds4-capi",
        &["ds4-embedded", "ds4-engine", "ds4-kernels", "ds4-sim"],
    ),
    ("ds4-driver", &["ds4-engine", "ds4-kernels", "ds4-sim"]),
    ("ds4-nccl", &[]),
    // It holds the libraries as bytes; building them is no dependency.
    ("ds4-embedded", &[]),
    (
        "ds4-harness",
        &["ds4-embedded", "ds4-engine", "ds4-kernels", "ds4-sim"],
    ),
    (
        "ds4-benches",
        &["ds4-engine", "ds4-harness", "ds4-kernels", "ds4-sim"],
    ),
    ("ds4-ci", &[]),
];

/// Breaches in what `cargo metadata` printed.
pub(super) fn check(metadata: &str) -> Vec<String> {
    let parsed: Option<Value> = serde_json::from_str(metadata).ok();
    let packages = parsed
        .as_ref()
        .and_then(|json| json.get("packages")?.as_array());
    let Some(packages) = packages.filter(|packages| !packages.is_empty()) else {
        return vec!["cargo metadata lists no package".to_owned()];
    };
    packages.iter().flat_map(check_package).collect()
}

fn check_package(package: &Value) -> Vec<String> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let name = text(package, "name").unwrap_or_default();
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        return vec![format!(
            "{name}: the table of ci/src/tidy/edges.rs does not know this crate"
        )];
    };
    let dependencies = package.get("dependencies").and_then(Value::as_array);
    dependencies
        .into_iter()
        .flatten()
        .filter(|dependency| dependency.get("path").is_some_and(|path| !path.is_null()))
        .filter_map(|dependency| text(dependency, "name"))
        .filter(|dependency| !allowed.contains(&dependency.as_str()))
        .map(|dependency| {
            format!(
                "{name}: must not depend on {dependency}; it may on {}",
                listed(allowed)
            )
        })
        .collect()
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() {
        "no crate of the workspace".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependency: &str) -> String {
        format!(
            r#"{{"packages":[{{"name":"{name}","dependencies":[
                {{"name":"{dependency}","path":"/x","kind":"dev"}},{{"name":"serde","path":null}}]}}]}}"#
        )
    }

    #[test]
    fn an_edge_against_the_direction_is_a_breach_in_tests_too() {
        assert!(check(&package("ds4-sim", "ds4-engine")).is_empty());
        let problems = check(&package("ds4-engine", "ds4-sim"));
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].contains("must not depend on ds4-sim"),
            "{}",
            problems[0]
        );
    }

    #[test]
    fn an_unknown_crate_and_no_crate_at_all_are_breaches() {
        assert!(check(&package("ds4-extra", "ds4-sim"))[0].contains("does not know"));
        assert_eq!(check("{}").len(), 1);
        assert_eq!(check("").len(), 1);
    }
}
