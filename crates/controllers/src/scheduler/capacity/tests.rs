//! The cases of upstream's capacity tests, reimplemented, and those for `CapacityCheck::Summed`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::testing::{claim, node_info, view_of};
use super::super::view::InFlight;
use super::*;

const GI: i64 = 1 << 30;

fn capacity_of(labels: Value, capacity: Value, most: Value) -> Arc<CSIStorageCapacity> {
    let capacity = json!({
        "nodeTopology": labels, "storageClassName": "wait", "capacity": capacity, "maximumVolumeSize": most,
    });
    Arc::new(serde_json::from_value(capacity).unwrap())
}

fn here(capacity: &str) -> Arc<CSIStorageCapacity> {
    capacity_of(json!({"matchLabels": {"host": "n1"}}), json!(capacity), json!(null))
}

/// Claims of these sizes, with a driver that reports capacity.
fn asking(sizes: &[&str], capacities: Vec<Arc<CSIStorageCapacity>>, check: CapacityCheck) -> View {
    let claims = sizes.iter().enumerate().map(|(index, size)| {
        claim(&format!("c{index}"), json!({"spec": {"resources": {"requests": {"storage": size}}}}))
    });
    let mut view = view_of(claims.collect());
    view.drivers.insert(
        "d".into(),
        Arc::new(serde_json::from_value(json!({"spec": {"storageCapacity": true}})).unwrap()),
    );
    view.capacities = capacities;
    view.rules.capacity = check;
    view
}

fn fits(view: &View) -> bool {
    let claims: Vec<_> = view.claims.values().cloned().collect();
    has_capacity(view, &node_info(json!({})), &claims)
}

/// kubernetes.md 1.5 "Capacity": the cases in which both checks agree.
#[test]
fn single_claim_needs_capacity_on_the_node() {
    for check in [CapacityCheck::PerClaim, CapacityCheck::Summed] {
        let all = || json!({});
        let null = || json!(null);
        for (rule, capacities, expected) in [
            ("everywhere", vec![capacity_of(all(), json!("1Gi"), null())], true),
            ("on this node", vec![here("1Gi")], true),
            ("nowhere", vec![], false),
            (
                "on another node",
                vec![capacity_of(json!({"matchLabels": {"host": "n2"}}), json!("1Gi"), null())],
                false,
            ),
            ("no topology", vec![capacity_of(null(), json!("1Gi"), null())], false),
            (
                "unknown selector operator",
                vec![capacity_of(
                    json!({"matchExpressions": [{"key": "host", "operator": "Near"}]}),
                    json!("1Gi"),
                    null(),
                )],
                false,
            ),
            ("one of several", vec![here("1Mi"), here("1Gi")], true),
            ("too little", vec![here("1023Mi")], false),
            ("maximumVolumeSize too small", vec![capacity_of(all(), json!("9Gi"), json!("1Mi"))], false),
            ("only maximumVolumeSize", vec![capacity_of(all(), null(), json!("1Gi"))], true),
            ("zero capacity", vec![here("0")], false),
            ("maximumVolumeSize zero", vec![capacity_of(all(), json!("9Gi"), json!("0"))], false),
            ("not reported", vec![capacity_of(all(), null(), null())], false),
        ] {
            assert_eq!(fits(&asking(&["1Gi"], capacities, check)), expected, "{check:?}: {rule}");
        }
        let mut another = asking(&["1Gi"], vec![here("9Gi")], check);
        Arc::make_mut(&mut another.capacities[0]).storage_class_name = "other".into();
        assert!(!fits(&another), "{check:?}: another class");

        let mut unchecked = asking(&["1Gi"], vec![], check);
        unchecked.drivers.clear();
        assert!(fits(&unchecked), "{check:?}: no CSIDriver object, no check");
        let unreported =
            Arc::new(serde_json::from_value(json!({"spec": {"storageCapacity": false}})).unwrap());
        unchecked.drivers.insert("d".into(), unreported);
        assert!(fits(&unchecked), "{check:?}: storageCapacity false, no check");
    }
}

/// kubernetes#135985: multi-claim sums.
#[test]
fn claims_of_one_pod_are_summed() {
    for (rule, sizes, capacities, summed) in [
        ("both fit", &["1Gi", "1Gi"][..], vec![here("2Gi")], true),
        ("each fits, both do not", &["1Gi", "1Gi"], vec![here("1Gi")], false),
        ("in two pools", &["1Gi", "1Gi"], vec![here("1Gi"), here("1Gi")], true),
        ("the large one where it fits", &["1Gi", "3Gi"], vec![here("3Gi"), here("1Gi")], true),
        (
            "total capacity not reported",
            &["1Gi", "1Gi"],
            vec![capacity_of(json!({}), json!(null), json!("1Gi"))],
            true,
        ),
    ] {
        assert_eq!(fits(&asking(sizes, capacities.clone(), CapacityCheck::Summed)), summed, "{rule}");
        assert!(
            fits(&asking(sizes, capacities, CapacityCheck::PerClaim)),
            "{rule}: upstream checks each claim separately"
        );
    }
}

/// kubernetes#135985: in-flight claims.
#[test]
fn claims_in_flight_are_subtracted() {
    let host = |name: &str| [("host".to_owned(), name.to_owned())].into();
    let promised =
        |size: i64, class: &str, node: &str| InFlight { class: class.into(), size, labels: host(node) };
    for (rule, capacities, in_flight, expected) in [
        ("capacity for both", vec![here("2Gi")], vec![promised(GI, "wait", "n1")], true),
        ("capacity for one", vec![here("1Gi")], vec![promised(GI, "wait", "n1")], false),
        ("another class", vec![here("1Gi")], vec![promised(GI, "other", "n1")], true),
        ("another node", vec![here("1Gi")], vec![promised(GI, "wait", "n2")], true),
        (
            "the smaller pool suffices for it",
            vec![here("3Gi"), here("1Gi")],
            vec![promised(GI, "wait", "n1")],
            true,
        ),
        ("more in flight than there is", vec![here("1Gi")], vec![promised(9 * GI, "wait", "n1")], false),
    ] {
        let mut view = asking(&["1Gi"], capacities, CapacityCheck::Summed);
        view.in_flight = in_flight;
        assert_eq!(fits(&view), expected, "{rule}");
        view.rules.capacity = CapacityCheck::PerClaim;
        assert!(fits(&view), "{rule}: upstream ignores them");
    }
}

proptest! {
    /// `Summed` accepts a node only if upstream's check does.
    #[test]
    fn summed_is_stricter_than_per_claim(
        sizes in prop::collection::vec(1..4i64, 1..4),
        pools in prop::collection::vec((0..6i64, prop::option::of(0..4i64), any::<bool>()), 0..4),
        promised in prop::collection::vec(1..4i64, 0..3),
    ) {
        let gi = |size: i64| json!(format!("{size}Gi"));
        let sizes: Vec<String> = sizes.iter().map(|size| format!("{size}Gi")).collect();
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        let capacities = pools.iter().map(|&(left, most, is_here)| {
            let node = if is_here { "n1" } else { "n2" };
            capacity_of(json!({"matchLabels": {"host": node}}), gi(left), most.map(gi).unwrap_or_default())
        });
        let mut view = asking(&sizes, capacities.collect(), CapacityCheck::Summed);
        let labels = || [("host".to_owned(), "n1".to_owned())].into();
        let in_flight = |&size: &i64| InFlight { class: "wait".into(), size: size * GI, labels: labels() };
        view.in_flight = promised.iter().map(in_flight).collect();
        let summed = fits(&view);
        view.rules.capacity = CapacityCheck::PerClaim;
        prop_assert!(!summed || fits(&view));
        // And the total never exceeds the capacity.
        let all: i64 = view.claims.values().filter_map(|claim| claim.requested_storage()).map(Quantity::bytes).sum();
        let reachable: i64 = pools.iter().filter(|pool| pool.2).map(|pool| pool.0 * GI).sum();
        prop_assert!(!summed || all <= reachable);
    }
}
