use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Encodes a length-delimited field: tag and payload.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2, u8::try_from(payload.len()).unwrap()];
    bytes.extend_from_slice(payload);
    bytes
}

fn int(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}

fn body(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let type_meta = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
    [MAGIC.to_vec(), field(1, &type_meta), field(2, raw)].concat()
}

#[test]
fn field_numbers_cover_exactly_the_schema_fields() {
    let mut todo: Vec<&'static Schema> = super::super::KINDS
        .iter()
        .copied()
        .filter(|schema| !schema.custom && schema.kind != "Status")
        .collect();
    let mut seen = BTreeSet::new();
    let inner = |kind: &'static Type| match kind {
        Type::Object(schema) | Type::List(Type::Object(schema)) | Type::Map(Type::Object(schema)) => {
            Some(*schema)
        }
        _ => None,
    };
    while let Some(schema) = todo.pop() {
        if !seen.insert(schema.name) || schema.name.ends_with(".ManagedFieldsEntry") {
            continue;
        }
        let targets = field_numbers()
            .get(short_name(schema.name))
            .unwrap_or_else(|| panic!("{} has no numbers", schema.name));
        let mut named: BTreeSet<&str> = BTreeSet::new();
        for target in targets.values() {
            match target {
                FieldTarget::Field(name) => drop(named.insert(name)),
                FieldTarget::Inline(inner) => {
                    for target in field_numbers()[inner].values() {
                        match target {
                            FieldTarget::Field(name) => drop(named.insert(name)),
                            FieldTarget::Inline(_) => panic!("{inner} is inline and has an inline message"),
                        }
                    }
                }
            }
        }
        let is_kind = !schema.kind.is_empty();
        let fields: BTreeSet<&str> = schema
            .fields
            .iter()
            .map(|field| field.name)
            .filter(|name| !(is_kind && matches!(*name, "apiVersion" | "kind")) && *name != "managedFields")
            .collect();
        assert_eq!(named, fields, "{}", schema.name);
        todo.extend(schema.fields.iter().filter_map(|field| inner(&field.kind)));
    }
    assert!(seen.len() > 150, "{}", seen.len());
}

#[test]
fn config_map_is_decoded() {
    let metadata = [field(1, b"a"), field(3, b"default"), field(8, &[])].concat();
    let data = [field(1, b"k"), field(2, b"v")].concat();
    let raw = [
        field(1, &metadata),
        field(2, &data),
        field(3, &[field(1, b"b"), field(2, b"\x01")].concat()),
        int(4, 1),
    ];
    assert_eq!(
        from_protobuf(&body("v1", "ConfigMap", &raw.concat())).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}, "binaryData": {"b": "AQ=="}, "immutable": true,
            "metadata": {"name": "a", "namespace": "default", "creationTimestamp": null},
        })
    );
}

#[test]
fn inline_messages_lists_quantities_and_times_are_decoded() {
    // A pod volume with a claim: Volume { name, VolumeSource { persistentVolumeClaim } }.
    let claim = field(10, &field(1, b"c"));
    let volume = [field(1, b"v"), field(2, &claim)].concat();
    let limit = [field(1, b"cpu"), field(2, &field(1, b"500m"))].concat();
    let port = [field(1, b"p"), int(3, 80)].concat();
    let probe =
        field(1, &field(2, &[field(1, b"/x"), field(2, &[int(1, 1), field(3, b"http")].concat())].concat()));
    let container =
        [field(1, b"c"), field(6, &port), field(8, &field(1, &limit)), field(10, &probe)].concat();
    let spec = [field(1, &volume), field(2, &container)].concat();
    let metadata = field(8, &[8, 5]);
    let pod = from_protobuf(&body("v1", "Pod", &[field(1, &metadata), field(2, &spec)].concat())).unwrap();
    assert_eq!(
        pod["spec"],
        json!({
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "containers": [{
                "name": "c", "ports": [{"name": "p", "containerPort": 80}], "resources": {"limits": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"path": "/x", "port": "http"}},
            }],
        })
    );
    assert_eq!(pod["metadata"]["creationTimestamp"], "1970-01-01T00:00:05Z");
}

#[test]
fn reviews_and_delete_options_are_decoded() {
    let attributes = [field(1, b"default"), field(2, b"get"), field(5, b"pods")].concat();
    let extra = [field(1, b"k"), field(2, &[field(1, b"a"), field(1, b"b")].concat())].concat();
    let spec = [field(1, &attributes), field(3, b"jane"), field(5, &extra)].concat();
    let review =
        from_protobuf(&body("authorization.k8s.io/v1", "SubjectAccessReview", &field(2, &spec))).unwrap();
    assert_eq!(
        review["spec"],
        json!({
            "resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}, "user": "jane",
            "extra": {"k": ["a", "b"]},
        })
    );
    let raw = [int(1, 0), field(2, &field(1, b"u")), field(4, b"Background"), field(5, b"All")].concat();
    let options = from_protobuf(&body("storage.k8s.io/v1", "DeleteOptions", &raw)).unwrap();
    assert_eq!(options["gracePeriodSeconds"], 0);
    assert_eq!((&options["preconditions"]["uid"], &options["dryRun"]), (&json!("u"), &json!(["All"])));
}

#[test]
fn times_have_the_precision_of_their_fields() {
    // 2026-01-02T03:04:05 and 700 ms, 3 ms and 1 ns, none.
    let seconds = [0x08, 0xa5, 0xeb, 0xdc, 0xca, 0x06];
    for (nanos, expected) in [
        (&[0x10, 0x80, 0xce, 0xe4, 0xcd, 0x02][..], "2026-01-02T03:04:05.700000Z"),
        (&[0x10, 0xc1, 0x8d, 0xb7, 0x01], "2026-01-02T03:04:05.003000Z"),
        (&[], "2026-01-02T03:04:05.000000Z"),
    ] {
        let time = [&seconds, nanos].concat();
        let raw = [field(1, &field(8, &time)), field(2, &field(4, &time))].concat();
        let lease = from_protobuf(&body("coordination.k8s.io/v1", "Lease", &raw)).unwrap();
        assert_eq!(lease["spec"]["renewTime"], expected);
        let lease =
            super::super::find("coordination.k8s.io", "Lease").unwrap().conform(lease).unwrap().object;
        assert_eq!(lease["spec"]["renewTime"], expected);
        assert_eq!(lease["metadata"]["creationTimestamp"], "2026-01-02T03:04:05Z");
    }
}

#[test]
fn invalid_bodies_are_rejected() {
    assert_eq!(from_protobuf(b"{}").unwrap_err(), ProtobufError::NotProtobuf);
    assert_eq!(from_protobuf(b"k8s\0\x0a\x7f").unwrap_err(), ProtobufError::Malformed);
    for (version, kind) in [("apps/v1", "Deployment"), ("snapshot.storage.k8s.io/v1", "VolumeSnapshot")] {
        assert!(
            matches!(from_protobuf(&body(version, kind, b"")), Err(ProtobufError::UnknownKind { .. })),
            "{kind}"
        );
    }
    let not_text = field(1, &field(1, b"\xff"));
    assert!(matches!(from_protobuf(&body("v1", "Pod", &not_text)), Err(ProtobufError::NotUtf8(_))));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(raw in proptest::collection::vec(any::<u8>(), 0..100)) {
        for kind in ["Pod", "ConfigMap", "Event", "DeleteOptions"] {
            let _ = from_protobuf(&body("v1", kind, &raw));
        }
        let _ = from_protobuf(&raw);
    }

    /// Damaged valid bodies reach more code than arbitrary bytes.
    #[test]
    fn damaged_bodies_do_not_panic(at in 0..100_usize, byte: u8, end in 0..100_usize) {
        let time = field(8, &[0x08, 0x05, 0x10, 0x07]);
        let limit = [field(1, b"cpu"), field(2, &field(1, b"500m"))].concat();
        let port = field(2, &field(2, &[int(1, 1), field(3, b"http")].concat()));
        let container = [field(8, &field(1, &limit)), field(10, &field(1, &port)), field(6, &int(3, 80))].concat();
        let mut whole = body("v1", "Pod", &[field(1, &time), field(2, &field(2, &container))].concat());
        prop_assert!(from_protobuf(&whole).is_ok());
        let (at, end) = (at % whole.len(), end % whole.len());
        whole[at] = byte;
        let _ = from_protobuf(&whole);
        let _ = from_protobuf(&whole[..end]);
    }
}
