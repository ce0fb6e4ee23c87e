//! A script of kubectl commands, run against both servers; their output must be the same.

use serde::Deserialize;

use crate::normalize;
use crate::servers::{AUTHORITY, Printed, Servers, Side};

/// One kubectl command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// The arguments, split as a shell does; `'` quotes.
    run: String,
    /// Its stdin.
    stdin: Option<String>,
    /// Commands to run as soon as it has started to print, in the same syntax. For commands that watch and exit on
    /// their own.
    #[serde(default)]
    meanwhile: Vec<String>,
}

fn cases() -> Vec<Case> {
    serde_saphyr::from_str(&crate::read("kubectl.yaml")).unwrap()
}

mod cluster {
    use super::*;

    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn kubectl_output_is_the_same() {
        let servers = Servers::start();
        let judged = cases().into_iter().enumerate().map(|(number, case)| {
            let args = words(&case.run);
            let [theirs, ours] = [Side::Theirs, Side::Ours].map(|side| {
                let meanwhile = || {
                    for line in &case.meanwhile {
                        let printed = servers.run(side, &borrowed(&words(line)), None);
                        assert!(printed.success, "{line}: {printed:?}");
                    }
                };
                let printed = servers.run_while(side, &borrowed(&args), case.stdin.as_deref(), meanwhile);
                if case.run.starts_with("create namespace") {
                    servers.until(side, &["--namespace", "tour", "get", "configmap", AUTHORITY]);
                }
                comparable(&case.run, &printed)
            });
            (format!("{number:03} kubectl {}", case.run), normalize::difference(&theirs, &ours))
        });
        crate::judge("kubectl", &crate::read("kubectl-allowed.yaml"), judged.collect());
    }
}

/// The arguments of a command.
fn words(line: &str) -> Vec<String> {
    ["--namespace", "tour"].map(str::to_owned).into_iter().chain(split_words(line)).collect()
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Splits a line into words; `'` quotes.
fn split_words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// The output in comparable form, by field where the format has fields.
fn comparable(command: &str, printed: &Printed) -> Vec<String> {
    let mut lines = vec![format!("succeeds: {}", printed.success)];
    lines.extend(normalize::text(&printed.stderr));
    let format =
        |name: &str| ["-o ", "--output "].iter().any(|flag| command.contains(&format!("{flag}{name}")));
    let parsed = if format("json") && !format("jsonpath") {
        serde_json::from_str(&printed.stdout).ok()
    } else if format("yaml") {
        serde_saphyr::from_str(&printed.stdout).ok()
    } else {
        None
    };
    match parsed {
        Some(mut parsed) => {
            normalize::value(&mut parsed);
            lines.extend(normalize::leaves(&parsed));
        }
        None if ["NAME", "LAST SEEN", "EVENT"].iter().any(|head| printed.stdout.starts_with(head)) => {
            lines.extend(normalize::table(&printed.stdout));
        }
        None => lines.extend(normalize::text(&printed.stdout)),
    }
    lines
}

#[test]
fn script_has_enough_commands() {
    assert!(cases().len() >= 80, "{}", cases().len());
    assert_eq!(split_words("patch pv a -p '{\"a\": 1}'"), ["patch", "pv", "a", "-p", "{\"a\": 1}"]);
}
