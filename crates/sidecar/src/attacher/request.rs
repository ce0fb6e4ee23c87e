//! Builds the CSI requests from a volume's spec. Secrets are added when the call is sent.

use wharf_csi::v1;
use wharf_model::access::AccessError;
use wharf_model::volume::{CsiVolumeSource, PersistentVolumeSpec};

use super::view::AttacherConfig;
use crate::capability;

/// ControllerPublishVolume for a node.
pub(super) fn publish(
    config: &AttacherConfig,
    spec: &PersistentVolumeSpec,
    csi: &CsiVolumeSource,
    node_id: &str,
) -> Result<v1::ControllerPublishVolumeRequest, AccessError> {
    let multi_writer = config.capabilities.single_node_multi_writer;
    let capability = capability::for_volume(spec, &config.default_fstype, multi_writer)?;
    Ok(v1::ControllerPublishVolumeRequest {
        volume_id: csi.volume_handle.clone(),
        node_id: node_id.to_owned(),
        volume_capability: Some(capability),
        // CSI forbids `readonly` for a driver without PUBLISH_READONLY.
        readonly: csi.read_only && config.capabilities.publish_readonly,
        volume_context: (&csi.volume_attributes).into(),
        ..v1::ControllerPublishVolumeRequest::default()
    })
}

/// ControllerUnpublishVolume for a node.
pub(super) fn unpublish(csi: &CsiVolumeSource, node_id: &str) -> v1::ControllerUnpublishVolumeRequest {
    v1::ControllerUnpublishVolumeRequest {
        volume_id: csi.volume_handle.clone(),
        node_id: node_id.to_owned(),
        ..v1::ControllerUnpublishVolumeRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_csi::v1::volume_capability::{AccessType, BlockVolume, MountVolume};

    use super::*;
    use crate::driver::Capabilities;

    fn published(spec: Value, config: &AttacherConfig) -> v1::ControllerPublishVolumeRequest {
        let spec: PersistentVolumeSpec = serde_json::from_value(spec).unwrap();
        publish(config, &spec, spec.csi.as_ref().unwrap(), "n1").unwrap()
    }

    /// sidecars.md 1.2 "Read-only": file system, mount options, block mode, and the combined access mode.
    #[test]
    fn capability_follows_volume_spec() {
        let config = AttacherConfig { default_fstype: "xfs".into(), ..AttacherConfig::default() };
        let mount = |fs_type: &str, flags: &[&str]| {
            AccessType::Mount(MountVolume {
                fs_type: fs_type.into(),
                mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                ..MountVolume::default()
            })
        };
        let rwo = json!(["ReadWriteOnce"]);
        for (spec, access_type, mode) in [
            (json!({"accessModes": rwo, "csi": {"fsType": "ext4"}}), mount("ext4", &[]), 1),
            (json!({"accessModes": rwo, "csi": {}}), mount("xfs", &[]), 1),
            (
                json!({"accessModes": rwo, "mountOptions": ["ro", "x=y"], "volumeMode": "Filesystem", "csi": {}}),
                mount("xfs", &["ro", "x=y"]),
                1,
            ),
            (
                json!({"accessModes": rwo, "volumeMode": "Block", "csi": {"fsType": "ext4"}}),
                AccessType::Block(BlockVolume {}),
                1,
            ),
            (json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"], "csi": {}}), mount("xfs", &[]), 5),
            (json!({"accessModes": ["ReadOnlyMany"], "csi": {}}), mount("xfs", &[]), 3),
        ] {
            let capability = published(spec.clone(), &config).volume_capability.unwrap();
            assert_eq!(capability.access_type, Some(access_type), "{spec}");
            assert_eq!(capability.access_mode.unwrap().mode, mode, "{spec}");
        }
    }

    /// sidecars.md 1.0 "Access modes": the driver's capability distinguishes single-node modes; combinations that CSI
    /// cannot express are errors.
    #[test]
    fn access_modes_are_combined_or_rejected() {
        let capable = Capabilities { single_node_multi_writer: true, ..Capabilities::default() };
        for (modes, capabilities, mode) in [
            (json!(["ReadWriteOnce"]), Capabilities::default(), Ok(1)),
            (json!(["ReadWriteOnce"]), capable, Ok(7)),
            (json!(["ReadWriteOncePod"]), capable, Ok(6)),
            (
                json!(["ReadOnlyMany", "ReadWriteOnce"]),
                capable,
                Err(AccessError::ReadOnlyManyAndReadWriteOnce),
            ),
            (json!(["ReadWriteOncePod", "ReadWriteOnce"]), capable, Err(AccessError::OncePodNotAlone)),
            (json!([]), capable, Err(AccessError::Unsupported(vec![]))),
        ] {
            let spec: PersistentVolumeSpec =
                serde_json::from_value(json!({"accessModes": modes, "csi": {}})).unwrap();
            let config = AttacherConfig { capabilities, ..AttacherConfig::default() };
            let request = publish(&config, &spec, spec.csi.as_ref().unwrap(), "n1");
            let got = request.map(|request| request.volume_capability.unwrap().access_mode.unwrap().mode);
            assert_eq!(got, mode, "{modes}");
        }
    }

    /// sidecars.md 1.2 "Read-only".
    #[test]
    fn readonly_needs_driver_capability() {
        let capabilities = Capabilities { publish_readonly: true, ..Capabilities::default() };
        for (read_only, capabilities, sent) in [
            (true, capabilities, true),
            (false, capabilities, false),
            (true, Capabilities::default(), false),
            (false, Capabilities::default(), false),
        ] {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"readOnly": read_only}});
            let config = AttacherConfig { capabilities, ..AttacherConfig::default() };
            assert_eq!(published(spec, &config).readonly, sent);
        }
    }

    #[test]
    fn request_has_ids_and_volume_context() {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "csi": {"volumeHandle": "h", "volumeAttributes": {"a": "b"}},
        });
        let request = published(spec, &AttacherConfig::default());
        assert_eq!((request.volume_id.as_str(), request.node_id.as_str()), ("h", "n1"));
        assert_eq!(request.volume_context, [("a".to_owned(), "b".to_owned())].into());
        assert!(request.secrets.is_empty());
    }
}
