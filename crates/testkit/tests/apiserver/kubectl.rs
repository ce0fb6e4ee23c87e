//! A script of kubectl commands, run against both servers.

use serde::Deserialize;

use crate::normal;
use crate::servers::{AUTHORITY, Printed, Servers, Side};

/// One command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What kubectl is told, as a shell would take it apart; `'` keeps words together.
    run: String,
    /// What it reads.
    stdin: Option<String>,
    /// What others do as soon as it has begun to print, in the same words. For what watches, and ends by itself.
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
    fn kubectl_prints_the_same() {
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
            (format!("{number:03} kubectl {}", case.run), normal::difference(&theirs, &ours))
        });
        crate::judge("kubectl", &crate::read("kubectl-allowed.yaml"), judged.collect());
    }
}

/// What kubectl is given.
fn words(line: &str) -> Vec<String> {
    ["--namespace", "tour"].map(str::to_owned).into_iter().chain(taken_apart(line)).collect()
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Words, with those in `'` kept together.
fn taken_apart(line: &str) -> Vec<String> {
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

/// What was printed, by fields where the format has them.
fn comparable(command: &str, printed: &Printed) -> Vec<String> {
    let mut lines = vec![format!("succeeds: {}", printed.success)];
    lines.extend(normal::text(&printed.stderr));
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
            normal::value(&mut parsed);
            lines.extend(normal::leaves(&parsed));
        }
        None if ["NAME", "LAST SEEN", "EVENT"].iter().any(|head| printed.stdout.starts_with(head)) => {
            lines.extend(normal::table(&printed.stdout));
        }
        None => lines.extend(normal::text(&printed.stdout)),
    }
    lines
}

#[test]
fn there_are_enough_commands() {
    assert!(cases().len() >= 80, "{}", cases().len());
    assert_eq!(taken_apart("patch pv a -p '{\"a\": 1}'"), ["patch", "pv", "a", "-p", "{\"a\": 1}"]);
}
