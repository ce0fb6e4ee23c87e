//! The disk usage of emptyDir volumes that have a size limit.

mod walk;

use wharf_model::{Pod, Quantity};

use super::EMPTY_DIR;
use crate::paths::Root;

/// Why a pod is evicted: kubelet's message. `None` while no emptyDir on disk exceeds its limit. In memory, the limit is
/// that of the tmpfs. What cannot be counted does not hide the rest. Blocks.
pub fn exceeded_limit(root: &Root, pod: &Pod) -> Option<String> {
    limits(pod).find_map(|(volume, limit)| {
        let path = root.plain(&pod.metadata.uid, EMPTY_DIR, volume);
        let enough = u64::try_from(limit.bytes()).unwrap_or(u64::MAX);
        let usage = walk::disk_usage(&path, enough)
            .unwrap_or_else(|error| walk::Usage { skipped: Some(error), ..walk::Usage::default() });
        if let Some(error) = usage.skipped {
            tracing::warn!(pod = %pod.metadata.key(), volume, %error, "failed to measure all of an emptyDir");
        }
        message(volume, limit, usage.bytes)
    })
}

/// Names and limits of the emptyDir volumes on disk that have one.
pub fn limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    pod.spec.volumes.iter().filter_map(|volume| {
        let wanted = volume.empty_dir.as_ref().filter(|wanted| wanted.medium.is_empty())?;
        let limit = wanted.size_limit.filter(|limit| *limit > Quantity::ZERO)?;
        Some((volume.name.as_str(), limit))
    })
}

fn message(volume: &str, limit: Quantity, used: u64) -> Option<String> {
    let exceeded = i128::from(used) > i128::from(limit.bytes());
    exceeded.then(|| format!("Usage of EmptyDir volume {volume:?} exceeds the limit \"{limit}\". "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_limited_volumes_on_disk_are_measured() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "unlimited", "emptyDir": {}},
            {"name": "zero", "emptyDir": {"sizeLimit": "0"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "limited", "emptyDir": {"sizeLimit": "1Mi"}},
        ]}}))
        .unwrap();
        let limits: Vec<_> = limits(&pod).collect();
        assert_eq!(limits, [("limited", "1Mi".parse().unwrap())]);
        assert_eq!(message("v", "1Mi".parse().unwrap(), 1 << 20), None);
        assert_eq!(
            message("v", "1Mi".parse().unwrap(), (1 << 20) + 1).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
    }
}
