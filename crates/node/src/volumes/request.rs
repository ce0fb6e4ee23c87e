//! What drivers are asked, in CSI's words.

use std::collections::BTreeMap;
use std::path::Path;

use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessMode as Access, AccessType, BlockVolume, MountVolume};
use wharf_model::access::{CsiAccessMode, combined};
use wharf_model::whole::Pod;
use wharf_model::{AccessMode, Quantity, SecretRef};

use super::view::Driver;
use super::world::{Mode, Source, Volume, Want};
use super::{ownership, selinux};
use crate::plugins::NodeCapabilities;

/// The tokens of the pod's account, in the volume context.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Values of a secret.
pub(super) type Secrets = BTreeMap<String, String>;

/// What every call about a pod's share of a volume is made of.
#[derive(Clone, Copy)]
pub(super) struct Share<'a> {
    /// The volume.
    pub(super) volume: &'a Volume,
    /// The pod's wish.
    pub(super) want: &'a Want,
    /// What the driver can do.
    pub(super) can: &'a NodeCapabilities,
    /// Where it is staged; `None` where the driver does not stage.
    pub(super) staging: Option<&'a Path>,
}

impl Share<'_> {
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

    /// NodePublishVolume. `tokens` are the pod's, where the driver wants some.
    pub(super) fn publish(
        &self,
        target: &Path,
        driver: Driver<'_>,
        secrets: Secrets,
        tokens: Option<String>,
    ) -> v1::NodePublishVolumeRequest {
        let mut context = self.attributes();
        if driver.wants_pod_info() {
            context.extend(pod_info(&self.want.pod, self.volume.ephemeral));
        }
        context.extend(tokens.map(|tokens| (TOKENS.to_owned(), tokens)));
        v1::NodePublishVolumeRequest {
            volume_id: self.volume.handle.clone(),
            publish_context: self.publish_context(),
            staging_target_path: self.staging.map(text).unwrap_or_default(),
            target_path: text(target),
            volume_capability: Some(self.capability()),
            readonly: self.want.read_only,
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
        let (mode, fs_type, options) = match &self.want.source {
            Source::Inline(inline) => (AccessMode::ReadWriteOnce, inline.fs_type.as_str(), &[][..]),
            Source::Persistent { volume, .. } => (
                volume.spec.access_modes.first().copied().unwrap_or(AccessMode::ReadWriteOnce),
                volume.spec.csi.as_ref().map(|csi| csi.fs_type.as_str()).unwrap_or_default(),
                volume.spec.mount_options.as_slice(),
            ),
        };
        let access_type = match self.volume.mode {
            Mode::Block => AccessType::Block(BlockVolume {}),
            Mode::Filesystem => {
                let mut mount_flags = options.to_vec();
                mount_flags.extend(self.want.se_linux.as_deref().map(selinux::option));
                let group = ownership::group(self.want).filter(|_| self.can.volume_mount_group);
                AccessType::Mount(MountVolume {
                    fs_type: fs_type.to_owned(),
                    mount_flags,
                    volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
                })
            }
        };
        let mode = access_mode(mode, self.can.single_node_multi_writer);
        v1::VolumeCapability { access_mode: Some(Access { mode }), access_type: Some(access_type) }
    }

    fn publish_context(&self) -> BTreeMap<String, String> {
        self.volume.context.clone().unwrap_or_default()
    }

    fn attributes(&self) -> BTreeMap<String, String> {
        let attributes = match &self.want.source {
            Source::Inline(inline) => Some(&inline.volume_attributes),
            Source::Persistent { volume, .. } => volume.spec.csi.as_ref().map(|csi| &csi.volume_attributes),
        };
        let pairs = attributes.into_iter().flat_map(|attributes| attributes.iter());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

/// The secrets of a volume, for each call.
pub(super) enum Purpose {
    /// NodeStageVolume.
    Stage,
    /// NodePublishVolume.
    Publish,
    /// NodeExpandVolume.
    Expand,
}

/// The secret that a call gets. A pod's own volume has its secret in the pod's namespace, whatever it says.
pub(super) fn secret(want: &Want, purpose: &Purpose) -> Option<SecretRef> {
    match &want.source {
        Source::Inline(inline) => match purpose {
            Purpose::Publish => inline.node_publish_secret_ref.as_ref().map(|secret| SecretRef {
                name: secret.name.clone(),
                namespace: want.pod.metadata.namespace.clone().unwrap_or_default(),
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

/// What a driver that asks for it is told of the pod.
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

/// One mode, the volume's first.
fn access_mode(mode: AccessMode, single_node_multi_writer: bool) -> i32 {
    combined(&[mode], single_node_multi_writer).map_or(0, CsiAccessMode::number)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

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

    fn want(spec: Value, context: Value) -> Want {
        let volume =
            Arc::new(serde_json::from_value(json!({"metadata": {"name": "pv1"}, "spec": spec})).unwrap());
        Want {
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

    /// kubernetes.md 1.8 "Request": the whole request.
    #[test]
    fn what_is_published() {
        let want = want(
            json!({
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "mountOptions": ["noatime"],
                "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs", "volumeAttributes": {"a": "1"}},
            }),
            json!({"fsGroup": 7}),
        );
        let (volume, can) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let share =
            Share { volume: &volume, want: &want, can: &can, staging: Some(Path::new("/stage/globalmount")) };
        let secrets = Secrets::from([("k".into(), "s".into())]);
        let request = share.publish(Path::new("/pods/u/mount"), Driver::Silent, secrets.clone(), None);
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
        let stage = share.stage(secrets);
        assert_eq!(
            (stage.staging_target_path.as_str(), stage.publish_context["device"].as_str()),
            ("/stage/globalmount", "/dev/x")
        );
    }

    /// kubernetes.md 1.8 "Pod info", "Tokens".
    #[test]
    fn what_is_told_of_the_pod() {
        let want = want(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}));
        let (volume, can) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let share = Share { volume: &volume, want: &want, can: &can, staging: None };
        let driver = serde_json::from_value(json!({"spec": {"podInfoOnMount": true}})).unwrap();
        let secrets = Secrets::from([("user".into(), "hunter2".into())]);
        let tokens = json!({"vault": {"token": "hunter2"}}).to_string();
        let request = share.publish(Path::new("/t"), Driver::Said(&driver), secrets, Some(tokens.clone()));
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
    fn access_modes() {
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
        let want = want(json!({"csi": {"driver": "d", "volumeHandle": "h"}}), json!({}));
        let (volume, can) = (volume(Mode::Filesystem), NodeCapabilities::default());
        let share = Share { volume: &volume, want: &want, can: &can, staging: None };
        assert_eq!(share.capability().access_mode.unwrap().mode, 1, "no mode is ReadWriteOnce");
    }

    /// kubernetes.md 1.8 "fsGroup", "Request": a device has neither options nor a group; the driver is told the group
    /// if it can.
    #[test]
    fn devices_and_groups() {
        let spec = json!({"mountOptions": ["noatime"], "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}});
        let want = want(spec, json!({"fsGroup": 7}));
        let can = NodeCapabilities { volume_mount_group: true, ..NodeCapabilities::default() };
        let block = volume(Mode::Block);
        let share = Share { volume: &block, want: &want, can: &can, staging: None };
        assert_eq!(share.capability().access_type, Some(AccessType::Block(BlockVolume {})));
        let files = volume(Mode::Filesystem);
        let share = Share { volume: &files, ..share };
        let Some(AccessType::Mount(mount)) = share.capability().access_type else { panic!("not mounted") };
        assert_eq!(mount.volume_mount_group, "7");
        let expand = share.expand(Path::new("/t"), Quantity::from_bytes(1 << 30), Secrets::new());
        let Some(AccessType::Mount(mount)) = expand.volume_capability.unwrap().access_type else { panic!() };
        assert_eq!(mount.volume_mount_group, "");
        assert_eq!(
            (expand.volume_path.as_str(), expand.capacity_range.unwrap().required_bytes),
            ("/t", 1 << 30)
        );
    }

    /// kubernetes.md 1.8 "Secrets".
    #[test]
    fn whose_secret() {
        let csi = json!({"driver": "d", "volumeHandle": "h",
            "nodeStageSecretRef": {"name": "s", "namespace": "a"}, "nodePublishSecretRef": {"name": "p", "namespace": "b"},
            "nodeExpandSecretRef": {"name": "e", "namespace": "c"}});
        let want = want(json!({"csi": csi}), json!({}));
        let key = |purpose| secret(&want, &purpose).unwrap().key().to_string();
        assert_eq!([key(Purpose::Stage), key(Purpose::Publish), key(Purpose::Expand)], ["a/s", "b/p", "c/e"]);
        let inline = json!({"driver": "d", "nodePublishSecretRef": {"name": "p", "namespace": "elsewhere"}});
        let want = Want { source: Source::Inline(serde_json::from_value(inline).unwrap()), ..want };
        assert_eq!(secret(&want, &Purpose::Publish).unwrap().key().to_string(), "ns/p");
        assert_eq!(secret(&want, &Purpose::Stage), None);
    }
}
