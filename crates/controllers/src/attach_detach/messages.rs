//! Event messages, identical to upstream's: users search for them, and others' tests wait for them.

use wharf_model::Pod;

use super::decide::PodEvent;
use super::view::{AttachmentPhase, View};

/// The volume is attached. The trailing space is upstream's.
pub(super) fn attached(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume {volume:?} ")
}

/// The VolumeAttachment could not be created.
pub(super) fn attach_request_failed(volume: &str, error: &str) -> String {
    attach_failed(volume, &format!("kubernetes.io/csi: attacher.Attach failed: {error}"))
}

/// The message for one pod on a node. It differs by pod: a user who may read the events of one namespace must not learn
/// the names of pods in others.
pub(super) fn pod_event(view: &View<'_>, node: &str, pod: &Pod, event: &PodEvent) -> String {
    let name =
        view.nodes.get(node).map_or(view.name.handle.as_str(), |node_view| view.display_name(node_view));
    match event {
        PodEvent::MultiAttach { nodes } => {
            let others = nodes.iter().filter_map(|node| view.nodes.get(node));
            let pods: Vec<&Pod> =
                others.flat_map(|node_view| node_view.pods.iter().map(|pod| &**pod)).collect();
            format!("Multi-Attach error for volume {name:?} {}", used_by(pod, &pods))
        }
        PodEvent::AttachFailed { message, .. } => attach_failed(name, message),
        PodEvent::Timeout { phase: AttachmentPhase::Detaching } => {
            attach_failed(name, "volume attachment is being deleted")
        }
        PodEvent::Timeout { .. } => {
            let (driver, handle) = (&view.name.driver, &view.name.handle);
            let waiting_for = format!("external-attacher of {driver} CSI driver to attach volume {handle}");
            attach_failed(name, &format!("timed out waiting for {waiting_for}"))
        }
    }
}

fn attach_failed(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume {volume:?} : {error}")
}

fn used_by(pod: &Pod, users: &[&Pod]) -> String {
    let (same_namespace, other_namespaces): (Vec<&Pod>, Vec<&Pod>) =
        users.iter().partition(|user| user.metadata.namespace == pod.metadata.namespace);
    let mut names: Vec<&str> = same_namespace.iter().map(|user| user.metadata.name.as_str()).collect();
    names.sort_unstable();
    let (names, others) = (names.join(", "), other_namespaces.len());
    match (same_namespace.len(), others) {
        (0, 0) => {
            "Volume is already exclusively attached to one node and can't be attached to another".to_owned()
        }
        (0, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (_, 0) => format!("Volume is already used by pod(s) {names}"),
        (_, _) => {
            format!("Volume is already used by pod(s) {names} and {others} pod(s) in different namespaces")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(key: &str) -> Pod {
        let (namespace, name) = key.split_once('/').unwrap();
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name}})).unwrap()
    }

    /// kubernetes.md 1.3 "Multi-Attach": Test_ReportMultiAttachError, case by case, and several pods.
    #[test]
    fn multi_attach_message_lists_pods_of_own_namespace() {
        for (users, expected) in [
            (&[][..], "Volume is already exclusively attached to one node and can't be attached to another"),
            (&["ns1/pod2"], "Volume is already used by pod(s) pod2"),
            (&["ns2/pod2"], "Volume is already used by 1 pod(s) in different namespaces"),
            (
                &["ns2/pod2", "ns1/pod3"],
                "Volume is already used by pod(s) pod3 and 1 pod(s) in different namespaces",
            ),
            (&["ns1/pod4", "ns1/pod3"], "Volume is already used by pod(s) pod3, pod4"),
        ] {
            let users: Vec<Pod> = users.iter().map(|key| pod(key)).collect();
            assert_eq!(used_by(&pod("ns1/pod1"), &users.iter().collect::<Vec<_>>()), expected);
        }
    }

    /// kubernetes.md 1.3 "Attach events".
    #[test]
    fn attach_messages_match_upstream() {
        assert_eq!(attached("pv"), "AttachVolume.Attach succeeded for volume \"pv\" ");
        assert_eq!(attach_failed("pv", "no"), "AttachVolume.Attach failed for volume \"pv\" : no");
        let attach_request_failed = attach_request_failed("pv", "forbidden");
        let expected =
            "AttachVolume.Attach failed for volume \"pv\" : kubernetes.io/csi: attacher.Attach failed: ";
        assert_eq!(attach_request_failed, format!("{expected}forbidden"));
    }
}
