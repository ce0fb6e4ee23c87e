//! Our schemas, patches and selectors against upstream's own libraries (`test/schema`, in Go), on random objects,
//! patches and selectors, and our reading of protobuf against its writing. A difference prints the question, so that it can become a line of a table.
//! `UPSTREAM_SEED` repeats the questions of a run.
//!
//! Only presence is compared of an error of several possible ones: in which order Go finds them is not defined.

#![allow(missing_docs)]

mod generate;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use wharf_apiserver::patch::{self, Patch};
use wharf_apiserver::schema::{self, Schema};
use wharf_apiserver::select::{FieldSelector, LabelSelector};

const QUESTIONS: usize = 30_000;

#[test]
#[ignore = "needs Go, and a minute"]
fn answers_as_upstream_does() -> Result<(), Box<dyn Error>> {
    let program = build()?;
    let given = std::env::var("UPSTREAM_SEED").ok().map(|text| text.parse::<u64>()).transpose()?;
    let seed = given.map_or_else(getrandom::u64, Ok)?;
    println!("UPSTREAM_SEED={seed}");
    let mut generator = generate::Generator::new(seed);
    let questions: Vec<Value> = (0..QUESTIONS).map(|_| generator.question()).collect();
    let answers = ask(&program, &questions)?;
    assert_eq!(answers.len(), questions.len());
    let mut different = Vec::new();
    let (mut refused, mut sent) = (0, 0);
    for (question, theirs) in questions.iter().zip(&answers) {
        if theirs.get("panic").is_some() {
            continue;
        }
        let protobuf = theirs["protobuf"].as_str();
        let theirs = plain(question, theirs);
        refused += usize::from(theirs.get("error").is_some());
        let ours = plain(question, &ours(question));
        if ours != theirs {
            different.push(format!("{question}\n  ours:   {ours}\n  theirs: {theirs}"));
        }
        if let Some(protobuf) = protobuf {
            sent += 1;
            let ours = plain(question, &read(question, protobuf)?);
            if ours["object"] != theirs["object"] {
                different.push(format!(
                    "{question}\n  protobuf: {protobuf}\n  ours:   {ours}\n  theirs: {theirs}"
                ));
            }
        }
    }
    println!("{QUESTIONS} questions, {refused} of them refused, {sent} in protobuf too");
    // A generator that makes only nonsense, or only sense, proves little.
    assert!(refused > QUESTIONS / 10 && refused < QUESTIONS / 2 && sent > QUESTIONS / 10);
    assert!(
        different.is_empty(),
        "{} differ:\n{}",
        different.len(),
        different[..different.len().min(5)].join("\n")
    );
    Ok(())
}

fn build() -> Result<PathBuf, Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/schema");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("upstream-schema");
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-trimpath", "-o"]).arg(&program).arg(".").current_dir(source);
    let status = go.status().map_err(|error| format!("upstream's libraries are built with Go: {error}"))?;
    if status.success() { Ok(program) } else { Err("upstream's libraries do not build".into()) }
}

fn ask(program: &Path, questions: &[Value]) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let text: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    // It answers while we still ask.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer died")??;
    String::from_utf8(output.stdout)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn ours(question: &Value) -> Value {
    let text = question["Text"].as_str().unwrap_or_default();
    let matches = |matches: bool| json!({"matches": matches});
    let refused = |refusal: wharf_apiserver::status::Refusal| json!({"error": refusal.message});
    match question["What"].as_str().unwrap_or_default() {
        "conform" => match kind(question).conform(question["Object"].clone()) {
            Ok(conformed) => json!({"object": conformed.object, "unknown": conformed.unknown}),
            Err(error) => json!({"error": error.to_string()}),
        },
        "labels" => {
            let object = json!({"metadata": {"labels": question["Labels"]}});
            LabelSelector::parse(text).map_or_else(refused, |selector| matches(selector.matches(&object)))
        }
        "fields" => {
            let value_of = |field: &str| question["Labels"][field].as_str().map(str::to_owned);
            FieldSelector::parse(text).map_or_else(refused, |selector| matches(selector.matches(value_of)))
        }
        what => {
            let what = if what == "strategic" { "strategic-merge" } else { what };
            let body = question["Patch"].to_string();
            let patch = Patch::parse(&format!("application/{what}-patch+json"), body.as_bytes());
            patch
                .and_then(|patch| patch::apply(kind(question), &question["Object"], &patch))
                .map_or_else(refused, |object| json!({"object": object}))
        }
    }
}

/// What we make of the object as a client sends it.
fn read(question: &Value, protobuf: &str) -> Result<Value, Box<dyn Error>> {
    let object = match schema::from_protobuf(&BASE64.decode(protobuf)?) {
        Ok(object) => object,
        Err(error) => return Ok(json!({"error": error.to_string()})),
    };
    Ok(match kind(question).conform(object) {
        Ok(conformed) => json!({"object": conformed.object}),
        Err(error) => json!({"error": error.to_string()}),
    })
}

fn kind(question: &Value) -> &'static Schema {
    let text = |key: &str| question[key].as_str().unwrap_or_default();
    schema::of(text("Group"), text("Kind")).or(schema::of("", "Pod")).expect("there are pods")
}

/// What is compared: numbers by value, unknown fields in any order, no type (which is not stored), and the words of
/// an error where there can be but one.
fn plain(question: &Value, answer: &Value) -> Value {
    let mut answer = answer.clone();
    answer.as_object_mut().map(|answer| answer.remove("protobuf"));
    let what = question["What"].as_str().unwrap_or_default();
    if let (Some(error), "strategic" | "json" | "labels") = (answer.get_mut("error"), what) {
        *error = true.into();
    }
    if what == "conform" {
        // The second within an eviction.
        for kind in ["/object", "/object/deleteOptions"] {
            let object = answer.pointer_mut(kind).and_then(Value::as_object_mut);
            object
                .into_iter()
                .for_each(|object| object.retain(|key, _| key != "kind" && key != "apiVersion"));
        }
        if let Some(unknown) = answer.get_mut("unknown").and_then(Value::as_array_mut) {
            unknown.sort_by_key(Value::to_string);
        }
    }
    if answer.get("unknown").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        answer.as_object_mut().map(|answer| answer.remove("unknown"));
    }
    numbers(answer)
}

fn numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list.into_iter().map(numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, numbers(value))).collect(),
        plain => plain,
    }
}
