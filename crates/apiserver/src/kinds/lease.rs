//! Lease: leader election.

use serde_json::Value;

use super::{AGE, BASE, Column, Kind, NAME, age, json, meta, names};
use crate::status::Cause;

pub(super) static LEASE: Kind = Kind {
    group: "coordination.k8s.io",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    namespaced: true,
    unconditional_update: false,
    create_on_update: true,
    default: |lease| {
        json::object_mut(lease, "spec");
    },
    // Upstream's feature gate CoordinatedLeaderElection is disabled by default.
    on_create: |lease, _| {
        for field in ["strategy", "preferredHolder"] {
            json::object_mut(lease, "spec").remove(field);
        }
    },
    on_update: |lease, old, _| {
        for field in ["strategy", "preferredHolder"] {
            if !json::has(old, &format!("/spec/{field}")) {
                json::object_mut(lease, "spec").remove(field);
            }
        }
    },
    validate: |lease| {
        let mut causes = meta::validate_lenient(lease, true, names::subdomain);
        causes.extend(validate_spec(lease));
        causes
    },
    validate_update: |lease, old| {
        let mut causes = meta::validate_update_lenient(lease, old);
        causes.extend(validate_spec(lease));
        causes
    },
    columns: &[NAME, Column::text("Holder", "The identity of the current holder."), AGE],
    row: |lease, now| {
        let cell = |pointer: &str| Value::from(json::text(lease, pointer));
        vec![cell("/metadata/name"), cell("/spec/holderIdentity"), age(lease, now).into()]
    },
    ..BASE
};

fn validate_spec(lease: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let Some(seconds @ ..=0) = json::number(lease, "/spec/leaseDurationSeconds") {
        causes.push(Cause::invalid("spec.leaseDurationSeconds", &seconds.into(), "must be greater than 0"));
    }
    if let Some(count @ ..0) = json::number(lease, "/spec/leaseTransitions") {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid("spec.leaseTransitions", &count.into(), detail));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{invalid, invalid_update};

    fn valid() -> Value {
        json!({
            "metadata": {"name": "l", "namespace": "ns"}, "spec": {"holderIdentity": "h", "leaseDurationSeconds": 15},
        })
    }

    #[test]
    fn create_and_update_are_validated() {
        for (patch, expected) in [
            (json!({"metadata": {"finalizers": ["mine"]}}), vec![]),
            (
                json!({"spec": {"leaseDurationSeconds": 0}}),
                vec!["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
            ),
            (
                json!({"spec": {"leaseTransitions": -1}}),
                vec!["spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"],
            ),
        ] {
            assert_eq!(invalid(&LEASE, &valid(), &patch), expected, "{patch}");
            assert_eq!(invalid_update(&LEASE, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn fields_of_disabled_feature_gate_are_dropped() {
        let mut lease = json!({"spec": {"strategy": "Oldest", "holderIdentity": "h"}});
        LEASE.prepare_create(&mut lease, Time(0));
        assert_eq!(lease["spec"], json!({"holderIdentity": "h"}));
        assert_eq!(Value::from((LEASE.row)(&valid(), Time(0))), json!(["l", "h", "<unknown>"]));
    }
}
