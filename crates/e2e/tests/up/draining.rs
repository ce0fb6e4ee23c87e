//! `wharf down` stops nothing before everything is unmounted: the process that unmounts must keep running until
//! then.

use serde_json::json;
use wharf_testkit::built_program;

use crate::machine::Machine;

impl Machine {
    fn down_within(&self, patience: &str) -> String {
        let data = self.data().display().to_string();
        let wharf = built_program("wharf").display().to_string();
        let down = format!("{wharf} down --data-dir {data} --timeout {patience} 2>&1 || true");
        self.run(&["sh", "-c", &down])
    }
}

/// Not all drivers attach: a volume of a driver without attachment may still be staged when all pods are deleted.
#[test]
fn down_names_volumes_still_mounted() {
    let mut machine = Machine::new();
    let staged = machine.data().join("kubelet/plugins/kubernetes.io/csi/d/h/globalmount");
    let staged = staged.to_str().unwrap();
    machine.run(&["mkdir", "-p", staged]);
    machine.run(&["mount", "-t", "tmpfs", "tmpfs", staged]);
    let output = machine.down_within("1s");
    assert!(output.contains("failed to drain within 1s") && output.contains(staged), "{output}");
    assert!(machine.is_running(), "wharf up must keep running to unmount");
    machine.run(&["umount", staged]);
    let output = machine.down_within("1m");
    assert!(output.contains("stopped; run `wharf up` to continue"), "{output}");
}

/// U-4: nothing can stop the pod of a node that does not exist. The node life cycle controller deletes it.
#[test]
fn down_ends_with_a_pod_on_a_node_that_does_not_exist() {
    let mut machine = Machine::new();
    machine.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lost"}, "spec": {
        "nodeName": "ghost", "containers": [{"name": "c", "image": "i", "command": ["true"]}],
    }}));
    let output = machine.down_within("1s");
    assert!(output.contains("pod default/lost (its node ghost does not exist"), "{output}");
    let output = machine.down_within("2m");
    assert!(output.contains("stopped; run `wharf up` to continue"), "{output}");
    assert!(!machine.is_running());
}
