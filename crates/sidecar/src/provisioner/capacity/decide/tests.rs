use serde_json::{Value, json};

use super::*;

fn object(
    name: &str,
    created: u32,
    capacity: &str,
    maximum: Option<&str>,
    owners: Value,
) -> CSIStorageCapacity {
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "uid": name, "creationTimestamp": format!("2024-01-01T00:00:0{created}Z"), "ownerReferences": owners,
        },
        "capacity": capacity, "maximumVolumeSize": maximum,
    }))
    .unwrap()
}

fn owner(uid: &str, controller: Option<bool>) -> Value {
    json!({"uid": uid, "controller": controller})
}

/// sidecars.md 1.1 "Capacity": created, updated only on change, duplicates and obsolete ones deleted.
#[test]
fn object_is_created_updated_and_deduplicated() {
    let capacity = Capacity { available: 1 << 30, maximum: Some(1 << 20) };
    let plain = Capacity { maximum: None, ..capacity };
    let good = object("good", 1, "1Gi", Some("1Mi"), json!([]));
    let same = object("same", 1, "1024Mi", Some("1048576"), json!([]));
    let no_maximum = object("plain", 1, "1Gi", None, json!([]));
    let later = object("later", 2, "1Gi", Some("1Mi"), json!([]));
    let twin = object("twin", 1, "1Gi", Some("1Mi"), json!([]));
    let (done, gone) = (Step::Done { poll_again: true }, Step::Done { poll_again: false });
    for (wanted, objects, capacity, expected) in [
        (false, vec![], None, gone),
        (false, vec![&good], None, Step::Delete(&good)),
        (false, vec![&good], Some(capacity), Step::Delete(&good)),
        (true, vec![], None, Step::GetCapacity),
        (true, vec![&good], None, Step::GetCapacity),
        (true, vec![], Some(capacity), Step::Create(capacity)),
        (true, vec![&good], Some(capacity), done),
        (true, vec![&same], Some(capacity), Step::Done { poll_again: true }),
        (true, vec![&no_maximum], Some(plain), Step::Done { poll_again: true }),
        (true, vec![&no_maximum], Some(capacity), Step::Update(&no_maximum, capacity)),
        (true, vec![&good], Some(plain), Step::Update(&good, plain)),
        (
            true,
            vec![&good],
            Some(Capacity { available: 0, ..capacity }),
            Step::Update(&good, Capacity { available: 0, ..capacity }),
        ),
        // The oldest stays; with equal age the smaller UID wins.
        (true, vec![&later, &good], None, Step::Delete(&later)),
        (true, vec![&good, &later], Some(capacity), Step::Delete(&later)),
        (true, vec![&twin, &good], None, Step::Delete(&twin)),
        (true, vec![&good, &twin], None, Step::Delete(&twin)),
    ] {
        let view = View { wanted, objects, capacity, owner: None };
        assert_eq!(decide(&view), expected, "{view:?}");
    }
}

/// sidecars.md 1.1 "Capacity": ownerRef.
#[test]
fn missing_owner_reference_is_added() {
    let capacity = Capacity { available: 1, maximum: None };
    let us = OwnerRef { uid: "us".into(), ..OwnerRef::default() };
    for (owners, wanted, updates) in [
        (json!([]), None, false),
        (json!([owner("them", Some(true))]), None, false),
        (json!([]), Some(&us), true),
        (json!([owner("them", Some(true))]), Some(&us), true),
        (json!([owner("us", None)]), Some(&us), true),
        (json!([owner("us", Some(false))]), Some(&us), true),
        (json!([owner("them", None), owner("us", Some(true))]), Some(&us), false),
    ] {
        let object = object("x", 1, "1", None, owners.clone());
        let view = View { wanted: true, objects: vec![&object], capacity: Some(capacity), owner: wanted };
        assert_eq!(matches!(decide(&view), Step::Update(..)), updates, "{owners}");
    }
}
