//! Facts of upstream's Capacity tests, told anew; and what ours adds.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::testing::{claim, place, view_of};
use super::super::view::InFlight;
use super::*;

const GI: i64 = 1 << 30;

fn room(labels: Value, capacity: Value, most: Value) -> Arc<CSIStorageCapacity> {
    let capacity = json!({
        "nodeTopology": labels, "storageClassName": "wait", "capacity": capacity, "maximumVolumeSize": most,
    });
    Arc::new(serde_json::from_value(capacity).unwrap())
}

fn here(capacity: &str) -> Arc<CSIStorageCapacity> {
    room(json!({"matchLabels": {"host": "n1"}}), json!(capacity), json!(null))
}

/// Claims of these sizes, of a driver that tells its capacity.
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
    suffices(view, &place(json!({})), &claims)
}

/// kubernetes.md 1.5 "Capacity": what upstream looks at, and ours with it.
#[test]
fn one_claim() {
    for check in [CapacityCheck::PerClaim, CapacityCheck::Summed] {
        let all = || json!({});
        let null = || json!(null);
        for (rule, capacities, expected) in [
            ("everywhere", vec![room(all(), json!("1Gi"), null())], true),
            ("here", vec![here("1Gi")], true),
            ("nowhere", vec![], false),
            ("elsewhere", vec![room(json!({"matchLabels": {"host": "n2"}}), json!("1Gi"), null())], false),
            ("no place at all", vec![room(null(), json!("1Gi"), null())], false),
            (
                "a selector that nobody understands",
                vec![room(
                    json!({"matchExpressions": [{"key": "host", "operator": "Near"}]}),
                    json!("1Gi"),
                    null(),
                )],
                false,
            ),
            ("one of several", vec![here("1Mi"), here("1Gi")], true),
            ("too little", vec![here("1023Mi")], false),
            ("no volume so large", vec![room(all(), json!("9Gi"), json!("1Mi"))], false),
            ("the largest volume alone", vec![room(all(), null(), json!("1Gi"))], true),
            ("nothing", vec![here("0")], false),
            ("no volume at all", vec![room(all(), json!("9Gi"), json!("0"))], false),
            ("nobody says", vec![room(all(), null(), null())], false),
        ] {
            assert_eq!(fits(&asking(&["1Gi"], capacities, check)), expected, "{check:?}: {rule}");
        }
        let mut another = asking(&["1Gi"], vec![here("9Gi")], check);
        Arc::make_mut(&mut another.capacities[0]).storage_class_name = "other".into();
        assert!(!fits(&another), "{check:?}: another class");

        let mut untold = asking(&["1Gi"], vec![], check);
        untold.drivers.clear();
        assert!(fits(&untold), "{check:?}: a driver that nobody describes is not asked");
        let quiet = Arc::new(serde_json::from_value(json!({"spec": {"storageCapacity": false}})).unwrap());
        untold.drivers.insert("d".into(), quiet);
        assert!(fits(&untold), "{check:?}: nor one that does not tell");
    }
}

/// kubernetes#135985: multi-claim sums.
#[test]
fn several_claims() {
    for (rule, sizes, capacities, summed) in [
        ("both fit", &["1Gi", "1Gi"][..], vec![here("2Gi")], true),
        ("each fits, both do not", &["1Gi", "1Gi"], vec![here("1Gi")], false),
        ("in two pools", &["1Gi", "1Gi"], vec![here("1Gi"), here("1Gi")], true),
        ("the large one where it fits", &["1Gi", "3Gi"], vec![here("3Gi"), here("1Gi")], true),
        (
            "nobody says how much in all",
            &["1Gi", "1Gi"],
            vec![room(json!({}), json!(null), json!("1Gi"))],
            true,
        ),
    ] {
        assert_eq!(fits(&asking(sizes, capacities.clone(), CapacityCheck::Summed)), summed, "{rule}");
        assert!(
            fits(&asking(sizes, capacities, CapacityCheck::PerClaim)),
            "{rule}: upstream looks at each alone"
        );
    }
}

/// kubernetes#135985: in-flight claims.
#[test]
fn claims_in_flight() {
    let host = |name: &str| [("host".to_owned(), name.to_owned())].into();
    let promised =
        |size: i64, class: &str, node: &str| InFlight { class: class.into(), size, labels: host(node) };
    for (rule, capacities, in_flight, expected) in [
        ("room for both", vec![here("2Gi")], vec![promised(GI, "wait", "n1")], true),
        ("room for one", vec![here("1Gi")], vec![promised(GI, "wait", "n1")], false),
        ("another class", vec![here("1Gi")], vec![promised(GI, "other", "n1")], true),
        ("another place", vec![here("1Gi")], vec![promised(GI, "wait", "n2")], true),
        (
            "the smaller pool will do for it",
            vec![here("3Gi"), here("1Gi")],
            vec![promised(GI, "wait", "n1")],
            true,
        ),
        ("promised more than there is", vec![here("1Gi")], vec![promised(9 * GI, "wait", "n1")], false),
    ] {
        let mut view = asking(&["1Gi"], capacities, CapacityCheck::Summed);
        view.in_flight = in_flight;
        assert_eq!(fits(&view), expected, "{rule}");
        view.rules.capacity = CapacityCheck::PerClaim;
        assert!(fits(&view), "{rule}: upstream does not see them");
    }
}

proptest! {
    /// Where ours sends a pod, upstream would send it too: ours only refuses more.
    #[test]
    fn ours_is_the_stricter(
        sizes in prop::collection::vec(1..4i64, 1..4),
        pools in prop::collection::vec((0..6i64, prop::option::of(0..4i64), any::<bool>()), 0..4),
        promised in prop::collection::vec(1..4i64, 0..3),
    ) {
        let gi = |size: i64| json!(format!("{size}Gi"));
        let sizes: Vec<String> = sizes.iter().map(|size| format!("{size}Gi")).collect();
        let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
        let capacities = pools.iter().map(|&(left, most, is_here)| {
            let node = if is_here { "n1" } else { "n2" };
            room(json!({"matchLabels": {"host": node}}), gi(left), most.map(gi).unwrap_or_default())
        });
        let mut view = asking(&sizes, capacities.collect(), CapacityCheck::Summed);
        let labels = || [("host".to_owned(), "n1".to_owned())].into();
        let in_flight = |&size: &i64| InFlight { class: "wait".into(), size: size * GI, labels: labels() };
        view.in_flight = promised.iter().map(in_flight).collect();
        let ours = fits(&view);
        view.rules.capacity = CapacityCheck::PerClaim;
        prop_assert!(!ours || fits(&view));
        // And never more in all than there is.
        let all: i64 = view.claims.values().filter_map(|claim| claim.requested()).map(Quantity::bytes).sum();
        let there: i64 = pools.iter().filter(|pool| pool.2).map(|pool| pool.0 * GI).sum();
        prop_assert!(!ours || all <= there);
    }
}
