//! The ledger of the contract: every row of `docs/sidecars.md` has a test that names it, or an entry that says why
//! not; and no test names a row that is not there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Section and row.
type Row = (String, String);

/// A row's name as tests write it: without what explains it.
fn short(name: &str) -> String {
    let name = name.trim_start_matches('`').split([' ', '`']).collect::<Vec<_>>();
    let words = name.iter().take_while(|word| !word.starts_with('(') && !word.contains(".io/"));
    words.copied().collect::<Vec<_>>().join(" ").trim().to_owned()
}

fn rows(contract: &str) -> BTreeSet<Row> {
    let mut section = None;
    let mut rows = BTreeSet::new();
    for line in contract.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            let number = title.split(' ').next().filter(|number| number.starts_with("1."));
            section = number.map(str::to_owned);
        }
        let name = line.strip_prefix("| ").and_then(|line| line.split(" | ").next());
        if let (Some(section), Some(name)) = (&section, name)
            && name != "Area"
        {
            rows.insert((section.clone(), short(name)));
        }
    }
    rows
}

/// The rows that a text names after `mark`, each as `1.N "Row"`.
fn named(text: &str, mark: &str) -> BTreeSet<Row> {
    let mut found = BTreeSet::new();
    for part in text.split(mark).skip(1) {
        // One mark may be followed by several rows: `1.1 "Delete", "Events", 1.2 "Detach".`
        let line: String = part.lines().take(2).collect::<Vec<_>>().join(" ");
        let mut section = String::new();
        let mut pieces = line.split('"');
        while let (Some(before), Some(name)) = (pieces.next(), pieces.next()) {
            if let Some(number) = before.split_whitespace().find(|word| word.starts_with("1.")) {
                section = number.to_owned();
            } else if section.is_empty() || !before.chars().all(|c| " ,/and".contains(c)) {
                break;
            }
            found.insert((section.clone(), short(name)));
        }
    }
    found
}

fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests/ledger.rs")
        {
            text.push_str(&fs::read_to_string(&path).expect("a source file"));
        }
    }
}

#[test]
fn every_row_has_a_case() {
    let contract = fs::read_to_string(Path::new(ROOT).join("docs/sidecars.md")).expect("docs/sidecars.md");
    let (_, explained) = contract.split_once("## Rows without a case").expect("the explained rows");
    let explained = named(explained, "\n- ");
    let rows = rows(&contract);
    assert!(rows.len() > 50, "the contract could not be read: {rows:?}");
    let mut text = String::new();
    sources(&Path::new(ROOT).join("crates"), &mut text);
    let named = named(&text, "sidecars.md");
    let missing: Vec<_> = rows.difference(&named).filter(|row| !explained.contains(row)).collect();
    assert!(missing.is_empty(), "rows without a case: {missing:?}");
    let stray: Vec<_> = named.difference(&rows).collect();
    assert!(stray.is_empty(), "tests name rows that are not in the contract: {stray:?}");
    let needless: Vec<_> = explained.intersection(&named).collect();
    assert!(needless.is_empty(), "these rows have a case and need no explanation: {needless:?}");
}

#[test]
fn names_are_read() {
    let text =
        "/// sidecars.md 1.1 \"SC params\", \"Delete\", 1.2 \"Detach\".\n/// sidecars.md 1.8 \"/healthz\"";
    let expected = [("1.1", "SC params"), ("1.1", "Delete"), ("1.2", "Detach"), ("1.8", "/healthz")];
    let expected: BTreeSet<Row> = expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    assert_eq!(named(text, "sidecars.md"), expected);
    assert_eq!(short("SC params `csi.storage.k8s.io/*`"), "SC params");
    assert_eq!(short("`/healthz`"), "/healthz");
    assert_eq!(short("Modify (VAC GA)"), "Modify");
}
