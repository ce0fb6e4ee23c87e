//! The words of events, letter by letter upstream's: people search for them, and tests of others wait for them.

use wharf_model::whole::Pod;

use super::decide::News;
use super::view::{Standing, View};

/// The volume is attached. The blank at the end is upstream's.
pub(super) fn attached(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume {volume:?} ")
}

/// The volume could not be asked for.
pub(super) fn not_asked(volume: &str, error: &str) -> String {
    failed(volume, &format!("kubernetes.io/csi: attacher.Attach failed: {error}"))
}

/// What a pod on a node is told. Each pod has its own words: who may read a namespace's events need not know what
/// pods there are in others.
pub(super) fn news(view: &View<'_>, node: &str, pod: &Pod, news: &News) -> String {
    let title = view.places.get(node).map_or(view.name.handle.as_str(), |place| view.title(place));
    match news {
        News::MultiAttach { nodes } => {
            let others = nodes.iter().filter_map(|node| view.places.get(node));
            let pods: Vec<&Pod> = others.flat_map(|place| place.pods.iter().map(|pod| &**pod)).collect();
            format!("Multi-Attach error for volume {title:?} {}", used_by(pod, &pods))
        }
        News::Failed { message, .. } => failed(title, message),
        News::Silence { standing: Standing::Going } => failed(title, "volume attachment is being deleted"),
        News::Silence { .. } => {
            let (driver, handle) = (&view.name.driver, &view.name.handle);
            let silent = format!("external-attacher of {driver} CSI driver to attach volume {handle}");
            failed(title, &format!("timed out waiting for {silent}"))
        }
    }
}

fn failed(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume {volume:?} : {error}")
}

fn used_by(pod: &Pod, users: &[&Pod]) -> String {
    let (near, far): (Vec<&Pod>, Vec<&Pod>) =
        users.iter().partition(|user| user.metadata.namespace == pod.metadata.namespace);
    let mut names: Vec<&str> = near.iter().map(|user| user.metadata.name.as_str()).collect();
    names.sort_unstable();
    let (names, others) = (names.join(", "), far.len());
    match (near.len(), others) {
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
    fn who_is_in_the_way() {
        for (users, words) in [
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
            assert_eq!(used_by(&pod("ns1/pod1"), &users.iter().collect::<Vec<_>>()), words);
        }
    }

    /// kubernetes.md 1.3 "Attach events".
    #[test]
    fn words_are_upstreams() {
        assert_eq!(attached("pv"), "AttachVolume.Attach succeeded for volume \"pv\" ");
        assert_eq!(failed("pv", "no"), "AttachVolume.Attach failed for volume \"pv\" : no");
        let not_asked = not_asked("pv", "forbidden");
        let words =
            "AttachVolume.Attach failed for volume \"pv\" : kubernetes.io/csi: attacher.Attach failed: ";
        assert_eq!(not_asked, format!("{words}forbidden"));
    }
}
