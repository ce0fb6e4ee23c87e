//! The addresses of pods and of the API server, for any listen address.

use serde_json::json;
use wharf_testkit::free_address;

use crate::machine::Machine;
use crate::objects::{claim, pod};

/// Pods share the machine's network: their address is the node's. A server that listens on all addresses has no
/// address of that name.
#[test]
fn pods_get_node_and_api_server_addresses() {
    let everywhere = free_address().replace("127.0.0.1", "0.0.0.0");
    let mut machine = Machine::with(&["--pool-size", "4Gi", "--listen", &everywhere]);
    machine.create(&claim("data", "32Mi"));
    let script = "echo $POD_IP $HOST_IP $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT";
    let mut asker = pod("asker", "data", script);
    let own = |path: &str| json!({"fieldRef": {"fieldPath": path}});
    asker["spec"]["containers"][0]["env"] = json!([
        {"name": "POD_IP", "valueFrom": own("status.podIP")},
        {"name": "HOST_IP", "valueFrom": own("status.hostIP")},
    ]);
    machine.create(&asker);
    machine.wait_for_field("pod/asker", "/status/phase", "Succeeded");
    let address = machine.field("pod/asker", "/status/podIP");
    assert!(!address.is_empty());
    assert_eq!(machine.field("pod/asker", "/status/hostIP"), address);
    assert_eq!(
        machine.field(&format!("node/{}", crate::machine::NODE), "/status/addresses/0/address"),
        address
    );
    let port = machine.port();
    assert_eq!(machine.container_logs("asker"), format!("{address} {address} 127.0.0.1:{port}\n"));
    machine.delete_everything();
}
