//! Reads the schema in a CustomResourceDefinition.

use serde_json::Value;

use crate::GroupVersionKind;

/// Returns the schema of version `v1`, the served version.
pub(crate) fn read(yaml: &str) -> Result<(GroupVersionKind, Value), Box<dyn std::error::Error>> {
    let definition: Value = serde_saphyr::from_str(yaml)?;
    let text = |pointer: &str| {
        definition.pointer(pointer).and_then(Value::as_str).map(str::to_owned).ok_or(format!("no {pointer}"))
    };
    let (group, kind) = (text("/spec/group")?, text("/spec/names/kind")?);
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array).ok_or("no versions")?;
    // The one kind without a v1 is served in its first version.
    let version =
        versions.iter().find(|version| version["name"] == "v1").or(versions.first()).ok_or("no version")?;
    let schema = version.pointer("/schema/openAPIV3Schema").cloned().ok_or("no schema")?;
    let version = version["name"].as_str().ok_or("a version without a name")?.to_owned();
    Ok((GroupVersionKind { group, version, kind }, schema))
}
