//! Volumes that the kubelet takes for one.

use super::*;

/// The kubelet identifies a volume by its driver and handle.
#[test]
fn pod_waits_because_two_volumes_have_the_same_handle() {
    let of_volume = |name: &str, driver: &str, handle: &str, facts: &ClaimFacts| {
        let mut facts = facts.clone();
        let Lookup::Found(volume) = &mut facts.volume else { unreachable!() };
        volume.metadata.name = name.into();
        let csi = volume.spec.csi.as_mut().unwrap();
        (csi.driver, csi.volume_handle) = (driver.into(), handle.into());
        facts
    };
    let in_tree = |name: &str, facts: &ClaimFacts| {
        let mut facts = of_volume(name, "d.csi", "h", facts);
        let Lookup::Found(volume) = &mut facts.volume else { unreachable!() };
        volume.spec.csi = None;
        facts
    };
    let same = [
        "volumes pv, pv2 have the same driver d.csi and volume handle \"h\"",
        "default/data, claim default/more",
    ];
    let kubelet = ["container c is waiting: ContainerCreating"; 2];
    for (case, phase, [name, driver, handle], expected) in [
        ("two volumes", "Pending", ["pv2", "d.csi", "h"], Some(same)),
        ("no status", "Pending", ["pv2", "d.csi", "h"], Some(same)),
        ("another handle", "Pending", ["pv2", "d.csi", "h2"], Some(kubelet)),
        ("another driver", "Pending", ["pv2", "e.csi", "h"], Some(kubelet)),
        ("one volume, twice", "Pending", ["pv", "d.csi", "h"], Some(kubelet)),
        ("no CSI volume", "Pending", ["pv2", "", ""], Some(kubelet)),
        ("containers started", "Running", ["pv2", "d.csi", "h"], None),
        // Volumes are mounted before images are pulled.
        ("image", "Pending", ["pv2", "d.csi", "h"], Some(["container c is waiting: ErrImagePull"; 2])),
    ] {
        let mut facts = pod(phase);
        let Lookup::Found(found) = &mut facts.pod else { unreachable!() };
        let reason = if case == "image" { "ErrImagePull" } else { "ContainerCreating" };
        if phase == "Pending" && case != "no status" {
            let status = json!([{"name": "c", "state": {"waiting": {"reason": reason}}}]);
            found.status.container_statuses = serde_json::from_value(status).unwrap();
        }
        facts.claims[0].driver =
            object(json!({"metadata": {"name": "d.csi"}, "spec": {"attachRequired": false}}));
        let mut more = match driver {
            "" => in_tree(name, &facts.claims[0]),
            driver => of_volume(name, driver, handle, &facts.claims[0]),
        };
        more.key = Some(wharf_model::Key::namespaced("default", "more"));
        let Lookup::Found(claim) = &mut more.claim else { unreachable!() };
        (claim.metadata.name, claim.spec.volume_name) = ("more".into(), name.into());
        facts.claims.push(more);
        let Lookup::Found(node) = &mut facts.nodes.get_mut("n").unwrap().csi_node else { unreachable!() };
        *node = serde_json::from_value(json!({"metadata": {"name": "n"},
            "spec": {"drivers": [{"name": "d.csi", "nodeID": "n"}, {"name": "e.csi", "nodeID": "n"}]}}))
        .unwrap();
        let explanation = explain_facts(&"pod/p".parse().unwrap(), &facts, Time(0));
        let pending = explanation.pending_step().map(|step| format!("{} {}", step.object, step.message));
        match (&pending, expected) {
            (Some(text), Some(parts)) => {
                assert!(parts.iter().all(|part| text.contains(part)), "{case}: {text}");
            }
            (None, None) => {}
            _ => panic!("{case}: {explanation}"),
        }
    }
}
