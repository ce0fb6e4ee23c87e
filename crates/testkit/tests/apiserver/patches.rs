//! Strategic merge patches at random, sent to both servers: objects that begin alike stay alike. `PATCH_SEED` repeats the
//! choices of a run.
//!
//! Left out is what Go decides by the order of its maps: a key that a patch has twice, and a name that it both gives and
//! takes away. Of a refusal code and reason are compared, for the same reason.

use serde_json::{Map, Value, json};
use wharf_testkit::Dice;

use crate::normal;
use crate::requests::{answer, client};
use crate::servers::{Servers, Side};

const PATCHES: usize = 600;
const NAMESPACE: &str = "patches";
const WORDS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Something that is patched.
struct Target {
    /// Its collection.
    path: &'static str,
    /// What is patched of it: itself, or its status.
    part: &'static str,
    /// As it begins.
    object: Value,
    /// Where a patch may change something.
    places: &'static [Place],
}

enum Place {
    /// A map of texts.
    Texts(&'static str),
    /// A list that is merged by a key; and the other fields of its members.
    Keyed(&'static str, &'static str, &'static [&'static str]),
    /// A list of names that is merged.
    Names(&'static str),
    /// A list that is replaced.
    Whole(&'static str),
}

use Place::{Keyed, Names, Texts, Whole};

fn targets() -> Vec<Target> {
    let target = |path, part, object, places| Target { path, part, object, places };
    vec![
        target(
            "/api/v1/namespaces/patches/serviceaccounts",
            "",
            json!({"metadata": {"name": "it"}, "secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "b"}]}),
            &[
                Texts("/metadata/labels"),
                Texts("/metadata/annotations"),
                Names("/metadata/finalizers"),
                Keyed("/metadata/ownerReferences", "uid", &["name", "kind", "apiVersion"]),
                Keyed("/secrets", "name", &["namespace", "fieldPath"]),
                Keyed("/imagePullSecrets", "name", &[]),
            ],
        ),
        target(
            "/api/v1/nodes",
            "/status",
            json!({"metadata": {"name": "patches"}}),
            &[
                Texts("/metadata/labels"),
                Keyed("/status/conditions", "type", &["status", "reason", "message"]),
                Keyed("/status/addresses", "type", &["address"]),
                Whole("/status/volumesInUse"),
            ],
        ),
        target(
            "/api/v1/namespaces/patches/persistentvolumeclaims",
            "/status",
            json!({"metadata": {"name": "it"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "c", "resources": {"requests": {"storage": "1Gi"}},
            }}),
            &[
                Keyed("/status/conditions", "type", &["status", "reason", "message"]),
                Texts("/metadata/annotations"),
                Whole("/status/accessModes"),
            ],
        ),
        target(
            "/api/v1/namespaces/patches/pods",
            "",
            json!({"metadata": {"name": "it"}, "spec": {
                "automountServiceAccountToken": false,
                "containers": [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}, {"name": "c", "image": "c"}],
            }}),
            &[
                Keyed("/spec/containers", "name", &["image"]),
                Keyed("/metadata/ownerReferences", "uid", &["name", "kind", "apiVersion"]),
                Names("/metadata/finalizers"),
                Texts("/metadata/labels"),
            ],
        ),
        target(
            "/api/v1/namespaces/patches/configmaps",
            "",
            json!({"metadata": {"name": "it"}, "data": {"a": "a"}}),
            &[Texts("/data"), Texts("/metadata/labels"), Names("/metadata/finalizers")],
        ),
    ]
}

mod cluster {
    use super::*;

    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn strategic_patches_come_to_the_same() {
        let mut dice = Dice::seeded_by("PATCH_SEED");
        let servers = Servers::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let clients = [Side::Theirs, Side::Ours].map(|side| runtime.block_on(client(&servers, side)));
        let send = |client: &kube::Client, what: &str, media: &str, body: &Value| {
            runtime.block_on(answer(client, what, None, Some((media, body.to_string()))))
        };
        let create = |path: &str, object: &Value| {
            for client in &clients {
                let (code, answer) =
                    send(client, &format!("POST {path}"), "application/json", object).unwrap();
                assert_eq!(code, 201, "{path}: {answer}");
            }
        };
        create("/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}}));
        servers.until(Side::Theirs, &["get", "serviceaccount", "default", "--namespace", NAMESPACE]);
        servers.until(Side::Ours, &["get", "serviceaccount", "default", "--namespace", NAMESPACE]);
        let targets = targets();
        targets.iter().for_each(|target| create(target.path, &target.object));
        let (mut done, mut objects) = (0, vec![Value::Null; targets.len()]);
        for number in 0..PATCHES {
            let at = dice.roll(targets.len());
            let target = &targets[at];
            let patch = patch(&mut dice, target.places, &objects[at]);
            let name = target.object["metadata"]["name"].as_str().unwrap();
            let what = format!("PATCH {}/{name}{}", target.path, target.part);
            let [theirs, ours] = clients.each_ref();
            let media = "application/strategic-merge-patch+json";
            // Some patches make the real one panic: they are not asked of ours, or the two would no longer be alike.
            let Ok(theirs) = send(theirs, &what, media, &patch) else { continue };
            let ours = send(ours, &what, media, &patch).unwrap();
            done += usize::from(theirs.0 == 200);
            if theirs.0 == 200 {
                objects[at] = theirs.1.clone();
            }
            let differs = normal::difference(&lines(theirs), &lines(ours));
            assert!(differs.is_empty(), "patch {number}, {what}: {patch}\n  {}", differs.join("\n  "));
        }
        println!("conformance: strategic patches: {PATCHES} sent, {done} of them done");
        // If most were refused, little would have been merged.
        assert!(done > PATCHES / 2 && done < PATCHES, "{done}");
    }
}

/// What is compared.
fn lines((code, mut answer): (u16, Value)) -> Vec<String> {
    if code >= 300 {
        return vec![format!("{code} {}", answer["reason"])];
    }
    // Uids of owners are ours to choose, so they are not hidden.
    let owners = answer["metadata"]["ownerReferences"].take();
    normal::value(&mut answer);
    answer["metadata"]["ownerReferences"] = owners;
    normal::leaves(&answer)
}

/// A patch for an object as it is.
fn patch(dice: &mut Dice, places: &[Place], object: &Value) -> Value {
    let mut patch = json!({});
    for place in places {
        if dice.roll(3) > 0 {
            continue;
        }
        let (Texts(at) | Keyed(at, ..) | Names(at) | Whole(at)) = place;
        let (around, field) = at.rsplit_once('/').unwrap();
        let there = object.pointer(at).unwrap_or(&Value::Null);
        let around = around.split('/').skip(1).fold(&mut patch, |inner, part| {
            inner.as_object_mut().unwrap().entry(part).or_insert_with(|| json!({}))
        });
        let around = around.as_object_mut().unwrap();
        match place {
            _ if dice.roll(12) == 0 => drop(around.insert(field.to_owned(), Value::Null)),
            Texts(_) => drop(around.insert(field.to_owned(), texts(dice))),
            Keyed(_, key, fields) => keyed(dice, around, field, key, fields, there),
            Names(_) => names(dice, around, field, there),
            Whole(_) => {
                let list: Vec<&str> = (0..dice.roll(3)).map(|_| word(dice)).collect();
                around.insert(field.to_owned(), json!(list));
            }
        }
        if dice.roll(25) == 0 {
            let kept: Vec<String> = around.keys().filter(|key| !key.starts_with('$')).cloned().collect();
            around.insert("$retainKeys".to_owned(), json!(kept));
        }
    }
    patch
}

fn word(dice: &mut Dice) -> &'static str {
    WORDS[dice.roll(WORDS.len())]
}

fn texts(dice: &mut Dice) -> Value {
    let mut map = Map::new();
    for _ in 0..dice.roll(4) {
        let value = if dice.roll(4) == 0 { Value::Null } else { word(dice).into() };
        map.insert(word(dice).to_owned(), value);
    }
    if dice.roll(10) == 0 {
        map.insert("$patch".to_owned(), ["replace", "delete", "merge", "jump"][dice.roll(4)].into());
    }
    map.into()
}

/// Members changed, deleted and new, each once, in an order that is given or not.
fn keyed(
    dice: &mut Dice,
    around: &mut Map<String, Value>,
    field: &str,
    key: &str,
    fields: &[&str],
    there: &Value,
) {
    let mut chosen: Vec<&str> = WORDS.into_iter().filter(|_| dice.roll(3) == 0).collect();
    for at in (1..chosen.len()).rev() {
        chosen.swap(at, dice.roll(at + 1));
    }
    let mut order: Vec<Value> = Vec::new();
    let mut members: Vec<Value> = Vec::new();
    for name in chosen {
        let mut member = json!({key: name});
        if dice.roll(4) == 0 {
            member["$patch"] = ["delete", "replace", "merge"][dice.roll(3)].into();
        }
        if member["$patch"] != "delete" {
            order.push(json!({key: name}));
            for field in fields {
                // What there has to be, most of the time.
                if dice.roll(8) > 0 {
                    member[*field] = if *field == "status" { "True".into() } else { word(dice).into() };
                }
            }
        }
        members.push(member);
    }
    if dice.roll(10) == 0 {
        members.push(json!({"$patch": "replace"}));
    }
    if dice.roll(3) == 0 {
        for member in there.as_array().into_iter().flatten() {
            let named = json!({key: member[key]});
            if dice.roll(4) > 0 && !order.contains(&named) {
                order.insert(dice.roll(order.len() + 1), named);
            }
        }
        around.insert(format!("$setElementOrder/{field}"), order.into());
    }
    around.insert(field.to_owned(), members.into());
}

/// Names given, and others taken away.
fn names(dice: &mut Dice, around: &mut Map<String, Value>, field: &str, there: &Value) {
    let full = |word: &str| format!("example.com/{word}");
    let (mut given, mut taken) = (Vec::new(), Vec::new());
    for word in WORDS {
        match dice.roll(4) {
            0 => given.push(full(word)),
            1 => taken.push(full(word)),
            _ => {}
        }
    }
    if dice.roll(2) == 0 {
        around.insert(format!("$deleteFromPrimitiveList/{field}"), json!(taken));
    }
    if dice.roll(3) == 0 {
        let mut order = given.clone();
        for name in there.as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !order.iter().any(|known| known == name) {
                order.push(name.to_owned());
            }
        }
        around.insert(format!("$setElementOrder/{field}"), json!(order));
    }
    around.insert(field.to_owned(), json!(given));
}

#[test]
fn the_same_seed_makes_the_same_patches() {
    let all = |seed: u64| -> Vec<Value> {
        let mut dice = Dice::of(seed);
        targets().iter().map(|target| patch(&mut dice, target.places, &target.object)).collect()
    };
    assert_eq!(all(7), all(7));
    assert_ne!(all(7), all(9));
}
