//! Builds the CSI node requests.

use std::collections::BTreeMap;
use std::path::Path;

use wharf_csi::v1::volume_capability::{AccessType, MountVolume};
use wharf_csi::{v1, volume_capability};
use wharf_model::Pod;
use wharf_model::access::combined_mode;
use wharf_model::{AccessMode, Quantity, SecretRef};

use super::view::Driver;
use super::world::{DesiredMount, Mode, Source, Volume};
use super::{ownership, selinux};
use crate::plugins::NodeCapabilities;

/// Volume context key of the service account tokens.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Data of a Secret.
pub(super) type Secrets = BTreeMap<String, String>;

/// Everything that the requests for a pod's mount are built from.
#[derive(Clone, Copy)]
pub(super) struct MountCall<'a> {
    /// The volume.
    pub(super) volume: &'a Volume,
    /// The pod's desired mount.
    pub(super) desired: &'a DesiredMount,
    /// The driver's node capabilities.
    pub(super) capabilities: &'a NodeCapabilities,
    /// The staging path; `None` if the driver does not stage.
    pub(super) staging: Option<&'a Path>,
}

impl MountCall<'_> {
    /// NodeStageVolume.
    pub(super) fn stage(&self, secrets: Secrets) -> v1::NodeStageVolumeRequest {
        v1::NodeStageVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context(),
            staging_target_path: self.staging.map(text).unwrap_or_default(),
            volume_capability: Some(self.capability()),
            secrets: secrets.into_iter().collect(),
            volume_context: self.attributes(),
        }
    }

    /// NodePublishVolume. `tokens` are those of the pod's service account, if the driver requests any.
    pub(super) fn publish(
        &self,
        target: &Path,
        driver: Driver<'_>,
        secrets: Secrets,
        tokens: Option<String>,
    ) -> v1::NodePublishVolumeRequest {
        let mut context = self.attributes();
        if driver.wants_pod_info() {
            context.extend(pod_info(&self.desired.pod, self.volume.ephemeral));
        }
        context.extend(tokens.map(|tokens| (TOKENS.to_owned(), tokens)));
        v1::NodePublishVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context(),
            staging_target_path: self.staging.map(text).unwrap_or_default(),
            target_path: text(target),
            volume_capability: Some(self.capability()),
            readonly: self.desired.read_only,
            secrets: secrets.into_iter().collect(),
            volume_context: context,
        }
    }

    /// NodeExpandVolume.
    pub(super) fn expand(
        &self,
        target: &Path,
        size: Quantity,
        secrets: Secrets,
    ) -> v1::NodeExpandVolumeRequest {
        let mut capability = self.capability();
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group.clear();
        }
        v1::NodeExpandVolumeRequest {
            volume_id: self.volume.handle.clone(),
            volume_path: text(target),
            capacity_range: Some(v1::CapacityRange { required_bytes: size.bytes(), limit_bytes: 0 }),
            staging_target_path: self.staging.map(text).unwrap_or_default(),
            volume_capability: Some(capability),
            secrets: secrets.into_iter().collect(),
        }
    }

    fn capability(&self) -> v1::VolumeCapability {
        let (mode, fs_type, options) = match &self.desired.source {
            Source::Inline(inline) => (AccessMode::ReadWriteOnce, inline.fs_type.as_str(), &[][..]),
            Source::Persistent { volume, .. } => (
                volume.spec.access_modes.first().copied().unwrap_or(AccessMode::ReadWriteOnce),
                volume.spec.csi.as_ref().map(|csi| csi.fs_type.as_str()).unwrap_or_default(),
                volume.spec.mount_options.as_slice(),
            ),
        };
        let mount = match self.volume.mode {
            Mode::Block => None,
            Mode::Filesystem => {
                let mut mount_flags = options.to_vec();
                mount_flags.extend(self.desired.se_linux.as_deref().map(selinux::option));
                let group = ownership::group(self.desired).filter(|_| self.capabilities.volume_mount_group);
                Some(MountVolume {
                    fs_type: fs_type.to_owned(),
                    mount_flags,
                    volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
                })
            }
        };
        volume_capability(access_mode(mode, self.capabilities.single_node_multi_writer), mount)
    }

    fn publish_context(&self) -> BTreeMap<String, String> {
        self.volume.context.clone().unwrap_or_default()
    }

    fn attributes(&self) -> BTreeMap<String, String> {
        let attributes = match &self.desired.source {
            Source::Inline(inline) => Some(&inline.volume_attributes),
            Source::Persistent { volume, .. } => volume.spec.csi.as_ref().map(|csi| &csi.volume_attributes),
        };
        let pairs = attributes.into_iter().flat_map(|attributes| attributes.iter());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// The call that a secret is for.
pub(super) enum Purpose {
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume.
    Publish,
    /// NodeExpandVolume.
    Expand,
}

/// The secret for a call. For an inline volume it is always in the pod's namespace.
pub(super) fn secret(desired: &DesiredMount, purpose: &Purpose) -> Option<SecretRef> {
    match &desired.source {
        Source::Inline(inline) => match purpose {
            Purpose::Publish => inline.node_publish_secret_ref.as_ref().map(|secret| SecretRef {
                name: secret.name.clone(),
                namespace: desired.pod.metadata.namespace.clone().unwrap_or_default(),
            }),
            Purpose::Stage | Purpose::Expand => None,
        },
        Source::Persistent { volume, .. } => {
            let csi = volume.spec.csi.as_ref()?;
            let secret = match purpose {
                Purpose::Stage => &csi.node_stage_secret_ref,
                Purpose::Publish => &csi.node_publish_secret_ref,
                Purpose::Expand => &csi.node_expand_secret_ref,
            };
            secret.as_deref().cloned()
        }
    }
}

/// Pod info for the volume context (podInfoOnMount).
fn pod_info(pod: &Pod, ephemeral: bool) -> [(String, String); 5] {
    [
        ("pod.name", pod.metadata.name.clone()),
        ("pod.namespace", pod.metadata.namespace.clone().unwrap_or_default()),
        ("pod.uid", pod.metadata.uid.clone()),
        ("serviceAccount.name", pod.spec.service_account_name.clone()),
        ("ephemeral", ephemeral.to_string()),
    ]
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
}

/// The CSI access mode of a single Kubernetes access mode.
fn access_mode(mode: AccessMode, single_node_multi_writer: bool) -> i32 {
    combined_mode(&[mode], single_node_multi_writer).map_or(0, i32::from)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_csi::v1::volume_capability::BlockVolume;

    use super::*;

    fn pod(context: Value) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {"serviceAccountName": "sa", "securityContext": context},
            }))
            .unwrap(),
        )
    }

    fn desired(spec: Value, context: Value) -> DesiredMount {
        let volume =
            Arc::new(serde_json::from_value(json!({"metadata": {"name": "pv1"}, "spec": spec})).unwrap());
        DesiredMount {
            pod: pod(context),
            names: ["v".to_owned()].into(),
            source: Source::Persistent { volume, claim: Arc::default() },
            read_only: true,
            se_linux: None,
        }
    }

    fn volume(mode: Mode) -> Volume {
        let mut volume = Volume::new("d", "h", "pv1", mode, false);
        volume.context = Some(BTreeMap::from([("device".into(), "/dev/x".into())]));
        volume
    }

    /// kubernetes.md 1.8 "Request": the complete request.
    #[test]
    fn publish_and_stage_requests_are_complete() {
        let desired = desired(
            json!({
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "mountOptions": ["noatime"],
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs", "volumeAttributes": {"a": "1"}},
            }),
            json!({"fsGroup": 7}),
        );
        let (volume, capabilities) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let call = MountCall {
            volume: &volume,
            desired: &desired,
            capabilities: &capabilities,
            staging: Some(Path::new("/stage/globalmount")),
        };
        let secrets = Secrets::from([("k".into(), "s".into())]);
        let request = call.publish(Path::new("/pods/u/mount"), Driver::NoObject, secrets.clone(), None);
        assert_eq!((request.volume_id.as_str(), request.readonly), ("h", true));
        assert_eq!(request.staging_target_path, "/stage/globalmount");
        assert_eq!(request.target_path, "/pods/u/mount");
        assert_eq!(request.publish_context["device"], "/dev/x");
        assert_eq!(request.volume_context, BTreeMap::from([("a".into(), "1".into())]));
        assert_eq!(request.secrets["k"], "s");
        let capability = request.volume_capability.unwrap();
        assert_eq!(capability.access_mode.unwrap().mode, 5);
        let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not mounted") };
        assert_eq!(
            (mount.fs_type.as_str(), mount.mount_flags, mount.volume_mount_group.as_str()),
            ("xfs", vec!["noatime".to_owned()], "")
        );
        let stage = call.stage(secrets);
        assert_eq!(
            (stage.staging_target_path.as_str(), stage.publish_context["device"].as_str()),
            ("/stage/globalmount", "/dev/x")
        );
    }

    /// kubernetes.md 1.8 "Pod info", "Tokens".
    #[test]
    fn volume_context_has_pod_info_and_tokens() {
        let desired = desired(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}));
        let (volume, capabilities) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let call =
            MountCall { volume: &volume, desired: &desired, capabilities: &capabilities, staging: None };
        let driver = serde_json::from_value(json!({"spec": {"podInfoOnMount": true}})).unwrap();
        let secrets = Secrets::from([("user".into(), "hunter2".into())]);
        let tokens = json!({"vault": {"token": "hunter2"}}).to_string();
        let request = call.publish(Path::new("/t"), Driver::Object(&driver), secrets, Some(tokens.clone()));
        let context = |key: &str| request.volume_context[&format!("csi.storage.k8s.io/{key}")].clone();
        assert_eq!(context("pod.name"), "p");
        assert_eq!(context("pod.namespace"), "ns");
        assert_eq!(context("pod.uid"), "u");
        assert_eq!(context("serviceAccount.name"), "sa");
        assert_eq!(context("ephemeral"), "false");
        assert_eq!(context("serviceAccount.tokens"), tokens);
        assert_eq!(request.staging_target_path, "");
        assert!(!format!("{request:?}").contains("hunter2"));
    }

    /// kubernetes.md 1.8 "Access mode": RWO, RWOP, ROX, RWX; and the node's SINGLE_NODE_MULTI_WRITER.
    #[test]
    fn access_mode_depends_on_single_node_multi_writer() {
        use AccessMode::{ReadOnlyMany, ReadWriteMany, ReadWriteOnce, ReadWriteOncePod, Unknown};
        for (mode, plain, capable) in [
            (ReadWriteOnce, 1, 7),
            (ReadWriteOncePod, 1, 6),
            (ReadOnlyMany, 3, 3),
            (ReadWriteMany, 5, 5),
            (Unknown, 0, 0),
        ] {
            assert_eq!((access_mode(mode, false), access_mode(mode, true)), (plain, capable), "{mode}");
        }
        let desired = desired(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}));
        let (volume, capabilities) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let call =
            MountCall { volume: &volume, desired: &desired, capabilities: &capabilities, staging: None };
        assert_eq!(call.capability().access_mode.unwrap().mode, 1, "no mode is ReadWriteOnce");
    }

    /// kubernetes.md 1.8 "fsGroup", "Request": a block volume has neither mount options nor a group; the driver gets
    /// the group if it supports VOLUME_MOUNT_GROUP.
    #[test]
    fn volume_mount_group_is_sent_for_filesystems_only() {
        let spec = json!({"mountOptions": ["noatime"], "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}});
        let desired = desired(spec, json!({"fsGroup": 7}));
        let capabilities = NodeCapabilities { volume_mount_group: true, ..NodeCapabilities::default() };
        let block = volume(Mode::Block);
        let call =
            MountCall { volume: &block, desired: &desired, capabilities: &capabilities, staging: None };
        assert_eq!(call.capability().access_type, Some(AccessType::Block(BlockVolume {})));
        let files = volume(Mode::Filesystem);
        let call = MountCall { volume: &files, ..call };
        let Some(AccessType::Mount(mount)) = call.capability().access_type else { panic!("not mounted") };
        assert_eq!(mount.volume_mount_group, "7");
        let expand = call.expand(Path::new("/t"), Quantity::from_bytes(1 << 30), Secrets::new());
        let Some(AccessType::Mount(mount)) = expand.volume_capability.unwrap().access_type else { panic!() };
        assert_eq!(mount.volume_mount_group, "");
        assert_eq!(
            (expand.volume_path.as_str(), expand.capacity_range.unwrap().required_bytes),
            ("/t", 1 << 30)
        );
    }

    /// kubernetes.md 1.8 "Secrets".
    #[test]
    fn secret_reference_depends_on_the_call() {
        let csi = json!({"driver": "d", "volumeHandle": "h",
            "nodeStageSecretRef": {"name": "s", "namespace": "a"}, "nodePublishSecretRef": {"name": "p", "namespace": "b"},
            "nodeExpandSecretRef": {"name": "e", "namespace": "c"}});
        let desired = desired(json!({"csi": csi}), json!({}));
        let key = |purpose| secret(&desired, &purpose).unwrap().key().to_string();
        assert_eq!([key(Purpose::Stage), key(Purpose::Publish), key(Purpose::Expand)], ["a/s", "b/p", "c/e"]);
        let inline = json!({"driver": "d", "nodePublishSecretRef": {"name": "p", "namespace": "elsewhere"}});
        let desired =
            DesiredMount { source: Source::Inline(serde_json::from_value(inline).unwrap()), ..desired };
        assert_eq!(secret(&desired, &Purpose::Publish).unwrap().key().to_string(), "ns/p");
        assert_eq!(secret(&desired, &Purpose::Stage), None);
    }
}
