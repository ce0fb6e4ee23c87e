//! Compares the translation of in-tree volumes and classes with upstream's library (`test/translation`, in Go) on
//! generated input. `UPSTREAM_SEED` selects other input than the fixed one.
//!
//! Only the presence of an error is compared: the messages are ours.

#![allow(missing_docs)]

mod generate;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use wharf_model::migration::{Plugin, to_in_tree};
use wharf_model::{PersistentVolume, StorageClass};

/// For each plugin and function.
const CASES: usize = 3_000;

#[test]
#[ignore = "needs Go, and a minute"]
fn translations_match_upstream() -> Result<(), Box<dyn Error>> {
    let program = build()?;
    let seed = std::env::var("UPSTREAM_SEED").ok().map(|text| text.parse::<u64>()).transpose()?;
    let mut generator = generate::Generator::new(seed.unwrap_or(1));
    let mut cases = Vec::new();
    for plugin in Plugin::ALL {
        for _ in 0..CASES {
            let of_plugin = [
                generator.volume(plugin),
                generator.created(plugin),
                generator.class(plugin),
                generator.repair(plugin),
            ];
            cases.extend(of_plugin.map(|case| (plugin, case)));
        }
    }
    let results = upstream_results(&program, cases.iter().map(|(_, case)| case))?;
    assert_eq!(results.len(), cases.len());
    let mut different = Vec::new();
    let mut rejected = 0;
    for ((plugin, case), theirs) in cases.iter().zip(&results) {
        assert!(theirs.get("panic").is_none(), "{case} {theirs}");
        rejected += usize::from(theirs.get("error").is_some());
        let (ours, theirs) = compared(*plugin, case, theirs)?;
        if ours != theirs {
            different.push(format!("{case}\n  ours:   {ours:#?}\n  theirs: {theirs:#?}"));
        }
    }
    println!("{} cases, {rejected} rejected", cases.len());
    // Only invalid or only valid input would prove little.
    assert!(rejected > cases.len() / 20 && rejected < cases.len() / 2, "{rejected} rejected");
    assert!(
        different.is_empty(),
        "{} results differ from upstream:\n{}",
        different.len(),
        different[..different.len().min(5)].join("\n")
    );
    Ok(())
}

/// What is compared of a result. `Error`: there is none.
#[derive(Debug, PartialEq)]
enum Compared {
    Error,
    /// The view of the volume that the sidecars use.
    Volume(Box<PersistentVolume>),
    /// Labels, annotations and spec of the volume that the provisioner writes.
    Written(Value),
    Class(Box<StorageClass>),
    Handle(String),
}

fn compared(plugin: Plugin, case: &Value, theirs: &Value) -> Result<(Compared, Compared), Box<dyn Error>> {
    let object = case["Object"].clone();
    let their_object = theirs.get("object").filter(|_| theirs.get("error").is_none());
    let (ours, theirs) = match case["What"].as_str().unwrap_or_default() {
        "volume" => {
            let ours: PersistentVolume = serde_json::from_value(object)?;
            let translated = ours.translation_error().is_none();
            assert!(ours.is_migrated_to(plugin.driver()), "{case}");
            let spec = ours.csi_spec().clone();
            let ours = translated.then_some(PersistentVolume { spec, ..ours });
            let theirs = their_object.map(|theirs| serde_json::from_value(theirs.clone())).transpose()?;
            let volume = |volume| Compared::Volume(Box::new(volume));
            (ours.map(volume), theirs.map(volume))
        }
        "created" => {
            let mut ours = object;
            let ours = to_in_tree(&mut ours).ok().map(|()| written(&ours));
            (ours, their_object.map(written))
        }
        "class" => {
            let ours: StorageClass = serde_json::from_value(object)?;
            let ours = plugin.translate_class(&ours).ok();
            let theirs = their_object.map(|theirs| serde_json::from_value(theirs.clone())).transpose()?;
            let class = |class| Compared::Class(Box::new(class));
            (ours.map(class), theirs.map(class))
        }
        _ => {
            let text = |key: &str| case[key].as_str().unwrap_or_default();
            let ours = plugin.repair_handle(text("Handle"), text("NodeID")).ok();
            let theirs = their_object.and_then(Value::as_str).map(str::to_owned);
            (ours.map(Compared::Handle), theirs.map(Compared::Handle))
        }
    };
    Ok((ours.unwrap_or(Compared::Error), theirs.unwrap_or(Compared::Error)))
}

/// Without what translation leaves alone and Go encodes in another way.
fn written(object: &Value) -> Compared {
    let mut spec = object["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        spec.retain(|key, value| key != "claimRef" && !value.is_null() && *value != json!([]));
    }
    let or_empty = |value: &Value| if value.is_null() { json!({}) } else { value.clone() };
    let meta = &object["metadata"];
    Compared::Written(json!({
        "labels": or_empty(&meta["labels"]),
        "annotations": or_empty(&meta["annotations"]),
        "spec": spec,
    }))
}

fn build() -> Result<PathBuf, Box<dyn Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/translation");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("upstream-translation");
    let mut go = Command::new("go");
    go.args(["build", "-mod=readonly", "-trimpath", "-o"]).arg(&program).arg(".").current_dir(source);
    let status =
        go.status().map_err(|error| format!("failed to run Go, which builds test/translation: {error}"))?;
    if status.success() { Ok(program) } else { Err("failed to build test/translation".into()) }
}

fn upstream_results<'a>(
    program: &Path,
    cases: impl Iterator<Item = &'a Value>,
) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let text: String = cases.map(|case| format!("{case}\n")).collect();
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    // The program writes results while it still reads cases.
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().map_err(|_| "the writer panicked")??;
    String::from_utf8(output.stdout)?.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}
