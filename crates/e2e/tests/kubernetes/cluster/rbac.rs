//! Each role with the RBAC rules of upstream's own manifest, and nothing more.

use wharf_testkit::{ScriptedDriver, TestCluster};

use super::objects::{attachment, claim, class, node_without_kubelet};
use super::{API_ONLY, MINUTE};

const DRIVER: &str = "rbac.test.wharf.dev";

#[test]
#[ignore = "needs a cluster: make test-cluster"]
fn each_role_works_with_upstream_rbac() {
    let cluster = TestCluster::start_with(API_ONLY);
    // The controller must complete expansions alone: the node has no kubelet.
    let driver = ScriptedDriver::start(&cluster, DRIVER, &["--node-capabilities", "STAGE_UNSTAGE_VOLUME"]);
    let start = |role: &str, more: &[&str]| {
        let mut args = vec!["--roles", role];
        args.extend(more);
        driver.sidecar_with(role, &cluster.sidecar_kubeconfig(role), &args)
    };
    let capacity = ["--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-for-immediate-binding"];
    let mut sidecars = [start("provisioner", &capacity), start("attacher", &[]), start("resizer", &[])];
    cluster.apply(&node_without_kubelet("node-x", DRIVER));
    cluster.apply(&[class("plain", DRIVER, ""), claim("one", "plain", "1Gi", "")].concat());
    cluster.wait_for("pvc/one", "jsonpath={.status.phase}=Bound", MINUTE);

    cluster.apply(&claim("copy", "plain", "1Gi", "dataSource: {kind: PersistentVolumeClaim, name: one}"));
    cluster.wait_for("pvc/copy", "jsonpath={.status.phase}=Bound", MINUTE);

    let volume = cluster.field("pvc/one", ".spec.volumeName");
    cluster.apply(&attachment("by-hand", DRIVER, &volume, "node-x"));
    cluster.wait_for("volumeattachment/by-hand", "jsonpath={.status.attached}=true", MINUTE);

    let bigger = r#"{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "one", "--patch", bigger]);
    cluster.wait_for("pvc/one", "jsonpath={.status.capacity.storage}=2Gi", MINUTE);

    // The claim is deleted first: its volume has to wait for the attachment.
    cluster.kubectl(&["delete", "pvc", "one", "copy", "--wait=false"]);
    cluster.eventually("the copy is deleted", MINUTE, |_| (driver.volumes().len() == 1).then_some(()));
    cluster.kubectl(&["delete", "volumeattachment", "by-hand", "--timeout=60s"]);
    cluster.eventually("all is deleted", MINUTE, |cluster| {
        (cluster.names("pv").is_empty() && driver.volumes().is_empty()).then_some(())
    });
    driver.assert_no_violation();
    for sidecar in &mut sidecars {
        // No request is made that upstream's rules do not allow.
        let log = sidecar.log().to_lowercase();
        let refused: Vec<&str> = log.lines().filter(|line| line.contains("forbidden")).collect();
        assert!(refused.is_empty(), "{refused:#?}");
        sidecar.stop();
    }
    let events = cluster.kubectl(&["get", "events", "--output", "jsonpath={.items[*].reason}"]);
    for reason in ["Provisioning", "ProvisioningSucceeded", "Resizing", "VolumeResizeSuccessful"] {
        assert!(events.split(' ').any(|event| event == reason), "event {reason} is missing in {events}");
    }
}
