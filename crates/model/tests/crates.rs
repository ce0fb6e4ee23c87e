//! Checks the layering: a crate depends only on the crates that its row in ARCHITECTURE.md lists. Dev-dependencies are
//! not part of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Each crate with its dependencies, by their directories below `crates/`.
type Edges = BTreeMap<String, BTreeSet<String>>;

/// The rows of the crate table: ``| `crates/NAME` | purpose | NAME, NAME |``.
fn allowed(architecture: &str) -> Edges {
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let name = cells.next()?.strip_prefix("`crates/")?.strip_suffix('`')?;
        let dependencies = cells.nth(1)?.split(',').map(str::trim).filter(|name| !name.is_empty());
        Some((name.to_owned(), dependencies.map(str::to_owned).collect()))
    };
    architecture.lines().filter_map(row).collect()
}

/// The dependencies in `cargo metadata`, which reads the manifests.
fn actual(metadata: &Value) -> Edges {
    let root = Path::new(metadata["workspace_root"].as_str().unwrap_or_default()).join("crates");
    let directory = |path: &Path| Some(path.strip_prefix(&root).ok()?.to_str()?.to_owned());
    let packages = metadata["packages"].as_array().into_iter().flatten().filter_map(|package| {
        let name = directory(Path::new(package["manifest_path"].as_str()?).parent()?)?;
        let dependencies = package["dependencies"].as_array()?.iter();
        let dependencies = dependencies.filter(|dependency| dependency["kind"] != "dev");
        let dependencies =
            dependencies.filter_map(|dependency| directory(Path::new(dependency["path"].as_str()?)));
        Some((name, dependencies.collect()))
    });
    packages.collect()
}

fn violations(allowed: &Edges, actual: &Edges) -> Vec<String> {
    let mut violations = Vec::new();
    for (name, dependencies) in actual {
        let Some(listed) = allowed.get(name) else {
            violations.push(format!("crates/{name} has no row"));
            continue;
        };
        for dependency in dependencies.difference(listed) {
            violations.push(format!("crates/{name} must not depend on crates/{dependency}"));
        }
        for dependency in listed.difference(dependencies) {
            violations
                .push(format!("crates/{name} does not depend on crates/{dependency}, which its row lists"));
        }
    }
    let removed = allowed.keys().filter(|name| !actual.contains_key(*name));
    violations.extend(removed.map(|name| format!("crates/{name} has a row, but does not exist")));
    violations
}

#[test]
fn crates_depend_only_on_what_architecture_md_allows() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let actual = actual(&serde_json::from_slice(&output.stdout).unwrap());
    let architecture = std::fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    let violations = violations(&allowed(&architecture), &actual);
    assert!(
        violations.is_empty(),
        "the dependencies differ from the crate table of ARCHITECTURE.md:\n  {}\nRemove the dependency, or change the \
         table if the edge is intended",
        violations.join("\n  ")
    );
}

#[test]
fn violations_name_the_edge() {
    let table = "| Crate | Purpose | Depends on |\n|---|---|---|\n| `crates/a` | First | |\n\
                 | `crates/b-c` | Second | a, d/e |\n| `crates/old` | Removed | a |\n";
    let metadata = serde_json::json!({"workspace_root": "/w", "packages": [
        {"manifest_path": "/w/crates/a/Cargo.toml", "dependencies": [
            {"kind": null, "path": "/w/crates/b-c"},
            {"kind": "dev", "path": "/w/crates/d/e"},
            {"kind": null},
        ]},
        {"manifest_path": "/w/crates/b-c/Cargo.toml", "dependencies": [{"kind": "build", "path": "/w/crates/a"}]},
        {"manifest_path": "/w/crates/d/e/Cargo.toml", "dependencies": []},
        {"manifest_path": "/w/bench/Cargo.toml", "dependencies": [{"kind": null, "path": "/w/crates/a"}]},
    ]});
    assert_eq!(
        violations(&allowed(table), &actual(&metadata)),
        [
            "crates/a must not depend on crates/b-c",
            "crates/b-c does not depend on crates/d/e, which its row lists",
            "crates/d/e has no row",
            "crates/old has a row, but does not exist",
        ]
    );
}
