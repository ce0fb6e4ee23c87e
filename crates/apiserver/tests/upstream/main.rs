//! Compares schemas, patches and selectors with upstream's libraries (`test/schema`, in Go) on random input, and decodes
//! the protobuf that they encode. A difference prints its test case, so that it can be added to a table of tests.
//! `UPSTREAM_SEED` repeats the cases of a run.
//!
//! If several errors are possible, only the presence of an error is compared: Go's order of errors is undefined.

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

const CASES: usize = 30_000;

#[test]
#[ignore = "needs Go, and a minute"]
fn results_match_upstream() -> Result<(), Box<dyn Error>> {
    let program = build()?;
    let given = std::env::var("UPSTREAM_SEED").ok().map(|text| text.parse::<u64>()).transpose()?;
    let seed = given.map_or_else(getrandom::u64, Ok)?;
    println!("UPSTREAM_SEED={seed}");
    let mut generator = generate::Generator::new(seed);
    let cases: Vec<Value> = (0..CASES).map(|_| generator.case()).collect();
    let results = upstream_results(&program, &cases)?;
    assert_eq!(results.len(), cases.len());
    let mut different = Vec::new();
    let (mut rejected, mut decoded) = (0, 0);
    for (case, theirs) in cases.iter().zip(&results) {
        if theirs.get("panic").is_some() {
            continue;
        }
        let protobuf = theirs["protobuf"].as_str();
        let theirs = normalized(case, theirs);
        rejected += usize::from(theirs.get("error").is_some());
        let ours = normalized(case, &our_result(case));
        if ours != theirs {
            different.push(format!("{case}\n  ours:   {ours}\n  theirs: {theirs}"));
        }
        if let Some(protobuf) = protobuf {
            decoded += 1;
            let ours = normalized(case, &decode(case, protobuf)?);
            if ours["object"] != theirs["object"] {
                different
                    .push(format!("{case}\n  protobuf: {protobuf}\n  ours:   {ours}\n  theirs: {theirs}"));
            }
        }
    }
    println!("{CASES} cases, {rejected} rejected, {decoded} also in protobuf");
    // Only invalid or only valid input would prove little.
    assert!(rejected > CASES / 10 && rejected < CASES / 2 && decoded > CASES / 10);
    assert!(
        different.is_empty(),
        "{} results differ from upstream:\n{}",
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
    let status =
        go.status().map_err(|error| format!("failed to run Go, which builds test/schema: {error}"))?;
    if status.success() { Ok(program) } else { Err("failed to build test/schema".into()) }
}

fn upstream_results(program: &Path, cases: &[Value]) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let text: String = cases.iter().map(|case| format!("{case}\n")).collect();
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    // The program writes results while it still reads cases.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    String::from_utf8(output.stdout)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn our_result(case: &Value) -> Value {
    let text = case["Text"].as_str().unwrap_or_default();
    let matches = |matches: bool| json!({"matches": matches});
    let error_result = |error: wharf_apiserver::status::StatusError| json!({"error": error.message});
    match case["What"].as_str().unwrap_or_default() {
        "conform" => match kind(case).conform(case["Object"].clone()) {
            Ok(conformed) => json!({"object": conformed.object, "unknown": conformed.unknown}),
            Err(error) => json!({"error": error.to_string()}),
        },
        "labels" => {
            let object = json!({"metadata": {"labels": case["Labels"]}});
            LabelSelector::parse(text)
                .map_or_else(error_result, |selector| matches(selector.matches(&object)))
        }
        "fields" => {
            let value_of = |field: &str| case["Labels"][field].as_str().map(str::to_owned);
            FieldSelector::parse(text)
                .map_or_else(error_result, |selector| matches(selector.matches(value_of)))
        }
        what => {
            let what = if what == "strategic" { "strategic-merge" } else { what };
            let body = case["Patch"].to_string();
            let patch = Patch::parse(&format!("application/{what}-patch+json"), body.as_bytes());
            patch
                .and_then(|patch| patch::apply(kind(case), &case["Object"], &patch))
                .map_or_else(error_result, |object| json!({"object": object}))
        }
    }
}

/// Decodes the object from protobuf, as a client sends it.
fn decode(case: &Value, protobuf: &str) -> Result<Value, Box<dyn Error>> {
    let object = match schema::from_protobuf(&BASE64.decode(protobuf)?) {
        Ok(object) => object,
        Err(error) => return Ok(json!({"error": error.to_string()})),
    };
    Ok(match kind(case).conform(object) {
        Ok(conformed) => json!({"object": conformed.object}),
        Err(error) => json!({"error": error.to_string()}),
    })
}

fn kind(case: &Value) -> &'static Schema {
    let text = |key: &str| case[key].as_str().unwrap_or_default();
    schema::find(text("Group"), text("Kind")).or(schema::find("", "Pod")).expect("Pod has a schema")
}

/// Normalizes a result for comparison: numbers by value, unknown fields sorted, without `kind` and `apiVersion` (which
/// are not stored), and error messages only where a single error is possible.
fn normalized(case: &Value, result: &Value) -> Value {
    let mut result = result.clone();
    result.as_object_mut().map(|result| result.remove("protobuf"));
    let what = case["What"].as_str().unwrap_or_default();
    if let (Some(error), "strategic" | "json" | "labels") = (result.get_mut("error"), what) {
        *error = true.into();
    }
    if what == "conform" {
        // The second one occurs in an eviction.
        for kind in ["/object", "/object/deleteOptions"] {
            let object = result.pointer_mut(kind).and_then(Value::as_object_mut);
            object
                .into_iter()
                .for_each(|object| object.retain(|key, _| key != "kind" && key != "apiVersion"));
        }
        if let Some(unknown) = result.get_mut("unknown").and_then(Value::as_array_mut) {
            unknown.sort_by_key(Value::to_string);
        }
    }
    if result.get("unknown").and_then(Value::as_array).is_some_and(Vec::is_empty) {
        result.as_object_mut().map(|result| result.remove("unknown"));
    }
    numbers(result)
}

fn numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(list) => list.into_iter().map(numbers).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, numbers(value))).collect(),
        plain => plain,
    }
}
