use super::*;
use crate::kinds::testing::lines;

#[test]
fn pod_affinity_is_validated() {
    let errors = |term: Value| {
        let spec = json!({"affinity": {"podAffinity": {REQUIRED: [term]}}});
        let wrong = lines(validate(&spec)).into_iter();
        wrong
            .map(|line| line.replace(&format!("spec.affinity.podAffinity.{REQUIRED}[0]"), "t"))
            .collect::<Vec<_>>()
    };
    assert!(errors(json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}})).is_empty());
    for (term, expected) in [
        (
            json!({"topologyKey": "z", "namespaces": ["A"], "labelSelector": {"matchExpressions": [{"key": "k", "operator": "Is"}]}}),
            vec![
                "t.labelSelector.matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator",
                "t.namespace: Invalid value: \"A\": a lowercase RFC 1123 label must consist of lower case alphanumeric \
                 characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', \
                 regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            ],
        ),
        (
            json!({"topologyKey": "z", "matchLabelKeys": ["a"]}),
            vec!["t.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"],
        ),
        (
            json!({"topologyKey": "z", "matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"], "labelSelector": {
                "matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
            }}),
            vec![
                "t[0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector",
                "t.matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mismatchLabelKeys",
            ],
        ),
    ] {
        assert_eq!(errors(term.clone()), expected, "{term}");
    }
    assert_eq!(errors(json!({}))[0], "t.topologyKey: Required value: can not be empty");
    let weighted = json!({"affinity": {"podAntiAffinity": {PREFERRED: [{"weight": 101, "podAffinityTerm": {"topologyKey": "z"}}]}}});
    assert_eq!(
        lines(validate(&weighted)),
        [format!(
            "spec.affinity.podAntiAffinity.{PREFERRED}[0].weight: Invalid value: 101: must be in the range 1-100"
        )]
    );
}

#[test]
fn node_affinity_is_validated() {
    let spec = |list: &str, term: Value| json!({"affinity": {"nodeAffinity": {list: term}}});
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["a b"]}]});
    assert!(validate(&spec(PREFERRED, json!([{"weight": 1, "preference": term}]))).is_empty());
    assert_eq!(validate(&spec(REQUIRED, json!({"nodeSelectorTerms": [term]}))).len(), 1);
    assert_eq!(validate(&spec(PREFERRED, json!([{"weight": 0, "preference": {}}]))).len(), 1);
}

#[test]
fn topology_spread_is_validated() {
    let errors = |constraints: Value| {
        let wrong = lines(topology_spread(&json!({"topologySpreadConstraints": constraints}))).into_iter();
        wrong.map(|line| line.replace("spec.topologySpreadConstraints", "")).collect::<Vec<_>>()
    };
    let good = json!({"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"});
    assert!(errors(json!([good])).is_empty());
    assert_eq!(
        errors(json!([good, good])),
        ["[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, ScheduleAnyway}\""]
    );
    assert_eq!(
        errors(json!([{"minDomains": 0, "whenUnsatisfiable": "Never", "nodeTaintsPolicy": "x"}])),
        [
            "[0].maxSkew: Invalid value: 0: must be greater than zero",
            "[0].topologyKey: Required value: can not be empty",
            "[0].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
            "[0].minDomains: Invalid value: 0: must be greater than zero",
            "[0].minDomains: Invalid value: 0: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not Never",
            "[0].nodeTaintsPolicy: Unsupported value: \"x\": supported values: \"Honor\", \"Ignore\"",
        ]
    );
}

#[test]
fn label_keys_are_merged_with_pod_labels() {
    let term = json!({"labelSelector": {}, "matchLabelKeys": ["a", "none"], "mismatchLabelKeys": ["b"]});
    let mut pod = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {
        "affinity": {"podAffinity": {PREFERRED: [{"podAffinityTerm": term}], REQUIRED: [{"matchLabelKeys": ["a"]}]}},
        "topologySpreadConstraints": [term],
    }});
    merge_label_keys(&mut pod);
    let (same, other) = (
        json!({"key": "a", "operator": "In", "values": ["1"]}),
        json!({"key": "b", "operator": "NotIn", "values": ["2"]}),
    );
    let affinity = &pod["spec"]["affinity"]["podAffinity"];
    let merged = &affinity[PREFERRED][0]["podAffinityTerm"]["labelSelector"]["matchExpressions"];
    assert_eq!(*merged, json!([same, other]));
    assert_eq!(affinity[REQUIRED][0], json!({"matchLabelKeys": ["a"]}));
    let spread = &pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"];
    assert_eq!(*spread, json!([same]));
}
