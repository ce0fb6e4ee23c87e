//! `wharf down` ends nothing before all is unmounted: whoever is to unmount it would be gone.

use wharf_testkit::built;

use crate::machine::Machine;

impl Machine {
    fn down_within(&self, patience: &str) -> String {
        let data = self.data().display().to_string();
        let wharf = built("wharf").display().to_string();
        let down = format!("{wharf} down --data-dir {data} --timeout {patience} 2>&1 || true");
        self.run(&["sh", "-c", &down])
    }
}

/// Not all drivers attach: a volume of one that does not may still be staged when all pods are gone.
#[test]
fn what_is_still_mounted_is_named() {
    let mut machine = Machine::new();
    let staged = machine.data().join("kubelet/plugins/kubernetes.io/csi/d/h/globalmount");
    let staged = staged.to_str().unwrap();
    machine.run(&["mkdir", "-p", staged]);
    machine.run(&["mount", "-t", "tmpfs", "tmpfs", staged]);
    let said = machine.down_within("1s");
    assert!(said.contains("nothing was stopped") && said.contains(staged), "{said}");
    assert!(machine.runs(), "whoever unmounts is still there");
    machine.run(&["umount", staged]);
    let said = machine.down_within("1m");
    assert!(said.contains("stopped; `wharf up` goes on from here"), "{said}");
}
