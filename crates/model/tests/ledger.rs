//! Checks the contracts: every row of `docs/sidecars.md` and of `docs/kubernetes.md` has a test that names it, or an
//! entry that explains why not; and no comment names a row that does not exist.
//!
//! Only comments in test code count, not those in the code that implements a row.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The start of the tests in a file that also has code.
const TESTS: &str = "#[cfg(test)]\nmod tests {";

/// Section and row.
type Row = (String, String);

/// A row's name as tests write it: without its explanation.
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
            let new = rows.insert((section.clone(), short(name)));
            assert!(new, "two rows of {section} are called {name:?}");
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
            // The rest refers to another document.
            if before.contains(".md") {
                break;
            }
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

/// The tests in a file: the whole file, or the part after its code. Module headers do not count.
fn tests_of(path: &Path, text: &str) -> String {
    let whole = path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let tests = if whole { text } else { text.split_once(TESTS).map_or("", |(_, tests)| tests) };
    tests.lines().filter(|line| !line.starts_with("//!")).map(|line| format!("{line}\n")).collect()
}

/// All code, and the tests in it.
fn sources(directory: &Path, all: &mut String, tests: &mut String) {
    for entry in fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, all, tests);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests/ledger.rs")
        {
            let text = fs::read_to_string(&path).expect("a source file");
            tests.push_str(&tests_of(&path, &text));
            all.push_str(&text);
        }
    }
}

#[test]
fn every_contract_row_has_a_test() {
    let (mut all, mut tests) = (String::new(), String::new());
    sources(&Path::new(ROOT).join("crates"), &mut all, &mut tests);
    for (document, least) in [("sidecars.md", 50), ("kubernetes.md", 130)] {
        let contract = fs::read_to_string(Path::new(ROOT).join("docs").join(document)).expect(document);
        let (_, explained) = contract.split_once("## Rows without a test").expect("the explained rows");
        let explained = named(explained, "\n- ");
        let rows = rows(&contract);
        assert!(rows.len() > least, "{document} could not be read: {rows:?}");
        let tested = named(&tests, document);
        let missing: Vec<_> = rows.difference(&tested).filter(|row| !explained.contains(row)).collect();
        assert!(missing.is_empty(), "{document}: rows without a test: {missing:?}");
        let mentioned = named(&all, document);
        let stray: Vec<_> = mentioned.union(&explained).filter(|row| !rows.contains(row)).collect();
        assert!(stray.is_empty(), "{document} has no such rows: {stray:?}");
        let needless: Vec<_> = explained.intersection(&tested).collect();
        assert!(needless.is_empty(), "{document}: these have a test and need no explanation: {needless:?}");
    }
}

#[test]
fn row_names_are_parsed() {
    let text =
        "/// sidecars.md 1.1 \"SC params\", \"Delete\", 1.2 \"Detach\".\n/// sidecars.md 1.8 \"/healthz\"";
    let expected = [("1.1", "SC params"), ("1.1", "Delete"), ("1.2", "Detach"), ("1.8", "/healthz")];
    let expected: BTreeSet<Row> = expected.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    assert_eq!(named(text, "sidecars.md"), expected);
    let two = "/// sidecars.md 1.1 \"Delete\". kubernetes.md 1.2 \"Admission\".";
    assert_eq!(named(two, "sidecars.md"), [("1.1".to_owned(), "Delete".to_owned())].into());
    assert_eq!(named(two, "kubernetes.md"), [("1.2".to_owned(), "Admission".to_owned())].into());
    assert_eq!(short("SC params `csi.storage.k8s.io/*`"), "SC params");
    assert_eq!(short("`/healthz`"), "/healthz");
    assert_eq!(short("Modify (VAC GA)"), "Modify");
}

#[test]
fn only_test_code_counts() {
    let text = "//! header\ncode\n#[cfg(test)]\nmod tests {\n    case\n}\n";
    for (path, tests) in [
        ("src/decide.rs", "\n    case\n}\n"),
        ("src/decide/tests.rs", "code\n#[cfg(test)]\nmod tests {\n    case\n}\n"),
        ("src/decide/tests/more.rs", "code\n#[cfg(test)]\nmod tests {\n    case\n}\n"),
        ("tests/whole.rs", "code\n#[cfg(test)]\nmod tests {\n    case\n}\n"),
    ] {
        assert_eq!(tests_of(Path::new(path), text), tests, "{path}");
    }
    assert_eq!(tests_of(Path::new("src/plain.rs"), "code\n"), "");
}
