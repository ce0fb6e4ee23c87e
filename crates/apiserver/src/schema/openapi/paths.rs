//! The paths and operations of a kind.

use serde_json::{Map, Value, json};

use super::components::{Components, group_version_kind};
use super::root;
use crate::kinds::Kind;
use crate::schema;

const WRITE: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];
const DELETE: &[(&str, &str)] = &[
    ("dryRun", "string"),
    ("gracePeriodSeconds", "integer"),
    ("orphanDependents", "boolean"),
    ("propagationPolicy", "string"),
];
const LIST: &[(&str, &str)] = &[
    ("allowWatchBookmarks", "boolean"),
    ("continue", "string"),
    ("fieldSelector", "string"),
    ("labelSelector", "string"),
    ("limit", "integer"),
    ("resourceVersion", "string"),
    ("resourceVersionMatch", "string"),
    ("sendInitialEvents", "boolean"),
    ("timeoutSeconds", "integer"),
    ("watch", "boolean"),
];

/// An operation of a path.
struct Operation<'a> {
    /// The verb, as in [`Kind::verbs`].
    verb: &'a str,
    /// The HTTP method, in lower case.
    method: &'a str,
    /// The value of the `x-kubernetes-action` extension.
    action: &'a str,
    query: &'a [(&'a str, &'a str)],
}

const COLLECTION: &[Operation<'_>] = &[
    Operation { verb: "list", method: "get", action: "list", query: LIST },
    Operation { verb: "create", method: "post", action: "post", query: WRITE },
    Operation { verb: "deletecollection", method: "delete", action: "deletecollection", query: LIST },
];
const ITEM: &[Operation<'_>] = &[
    Operation { verb: "get", method: "get", action: "get", query: &[] },
    Operation { verb: "create", method: "post", action: "post", query: WRITE },
    Operation { verb: "update", method: "put", action: "put", query: WRITE },
    Operation { verb: "patch", method: "patch", action: "patch", query: WRITE },
    Operation { verb: "delete", method: "delete", action: "delete", query: DELETE },
];

/// The kind of a path, and references to the schemas of its requests and responses.
struct PathSchemas {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// Whether strategic merge patches are supported.
    strategic: bool,
    object: Value,
    list: Option<Value>,
    options: Value,
    patch: Value,
}

/// Adds all paths of a kind.
pub(super) fn add(paths: &mut Map<String, Value>, kind: &'static Kind, components: &mut Components) {
    let Some(schemas) = path_schemas(kind.group, kind.kind, kind.verbs, components) else { return };
    let all = format!("/{}/{}", root(kind), kind.plural);
    let collection = match kind.namespaced {
        true => format!("/{}/namespaces/{{namespace}}/{}", root(kind), kind.plural),
        false => all.clone(),
    };
    if kind.namespaced && kind.verbs.contains(&"list") {
        insert(paths, all, COLLECTION, &["list"], kind, &schemas);
    }
    let item = format!("{collection}/{{name}}");
    insert(paths, collection, COLLECTION, kind.verbs, kind, &schemas);
    let mut verbs = kind.verbs.to_vec();
    verbs.retain(|verb| *verb != "create");
    insert(paths, item.clone(), ITEM, &verbs, kind, &schemas);
    for subresource in kind.subresources {
        if let Some(schemas) =
            path_schemas(subresource.group, subresource.kind, subresource.verbs, components)
        {
            insert(paths, format!("{item}/{}", subresource.name), ITEM, subresource.verbs, kind, &schemas);
        }
    }
}

fn path_schemas(group: &str, kind: &str, verbs: &[&str], components: &mut Components) -> Option<PathSchemas> {
    let schema = schema::find(group, kind)?;
    let options =
        schema::find("", "DeleteOptions").map(|options| components.add(options)).unwrap_or_default();
    Some(PathSchemas {
        group: schema.group,
        version: schema.version,
        kind: schema.kind,
        strategic: !schema.custom,
        object: components.add(schema),
        list: verbs.contains(&"list").then(|| components.add_list(schema)),
        options,
        patch: components.add_patch(),
    })
}

fn insert(
    paths: &mut Map<String, Value>,
    path: String,
    operations: &[Operation<'_>],
    verbs: &[&str],
    kind: &Kind,
    schemas: &PathSchemas,
) {
    let mut item = Map::new();
    for operation in operations.iter().filter(|operation| verbs.contains(&operation.verb)) {
        item.insert(operation.method.to_owned(), describe(operation, &path, kind, schemas));
    }
    if item.is_empty() {
        return;
    }
    let named = ["name", "namespace"].into_iter().filter(|name| path.contains(&format!("{{{name}}}")));
    let parameter =
        |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}});
    let parameters: Vec<Value> = named.map(parameter).collect();
    if !parameters.is_empty() {
        item.insert("parameters".into(), parameters.into());
    }
    paths.insert(path, item.into());
}

fn describe(operation: &Operation<'_>, path: &str, kind: &Kind, schemas: &PathSchemas) -> Value {
    let response = match (operation.action, &schemas.list) {
        ("list", Some(list)) => list,
        _ => &schemas.object,
    };
    let query = |(name, kind): &(&str, &str)| json!({"name": name, "in": "query", "schema": {"type": kind}});
    let parameters: Vec<Value> = operation.query.iter().map(query).collect();
    let json = |schema: &Value| json!({"application/json": {"schema": schema}});
    let mut described = json!({
        "tags": [format!("{}_{}", kind.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core"), kind.version)],
        "operationId": id(operation, path),
        "responses": {
            "200": {"description": "OK", "content": json(response)},
            "401": {"description": "Unauthorized"},
        },
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": group_version_kind(schemas.group, schemas.version, schemas.kind),
    });
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    let content = match operation.method {
        "post" | "put" => Some(json(&schemas.object)),
        "delete" => Some(json(&schemas.options)),
        "patch" => {
            let types = ["json-patch+json", "merge-patch+json", "strategic-merge-patch+json"];
            let taken = types.iter().take(if schemas.strategic { 3 } else { 2 });
            let patch = |name: &&str| (format!("application/{name}"), json!({"schema": schemas.patch}));
            Some(Value::Object(taken.map(patch).collect()))
        }
        _ => None,
    };
    if let Some(content) = content {
        described["requestBody"] = json!({"content": content, "required": operation.method != "delete"});
    }
    described
}

/// A unique ID of an operation: the verb and the path.
fn id(operation: &Operation<'_>, path: &str) -> String {
    let words = path.split(['/', '.', '{', '}']).filter(|word| !word.is_empty());
    words.fold(operation.action.to_owned(), |mut id, word| {
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        id.push_str(&first.to_ascii_uppercase());
        id.push_str(rest);
        id
    })
}
