//! Classes: parameters of in-tree plugins, in any case, become those of the driver; zones become allowed topologies.

use std::collections::BTreeMap;

use super::placement::{BETA_ZONE, ZONE};
use super::{Plugin, TranslationError, aws_ebs, azure_disk, cinder, gce_pd, portworx, vsphere};
use crate::StorageClass;
use crate::class::{TopologySelectorExpression, TopologySelectorTerm};

const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
/// The calls that Portworx' secret is used for.
const SECRET_PURPOSES: [&str; 6] =
    ["provisioner", "controller-publish", "node-publish", "node-stage", "controller-expand", "node-expand"];
/// Parameters of vSphere that the driver knows by another name.
const VSPHERE_MIGRATED: [&str; 8] = [
    "datastore",
    "diskformat",
    "hostfailurestotolerate",
    "forceprovisioning",
    "cachereservation",
    "diskstripes",
    "objectspacereservation",
    "iopslimit",
];

type Parameters = BTreeMap<String, String>;

pub(super) fn translate(plugin: Plugin, class: &StorageClass) -> Result<StorageClass, TranslationError> {
    let mut class = class.clone();
    let mut parameters = Parameters::new();
    let mut zones: Option<Vec<String>> = None;
    for (key, value) in std::mem::take(&mut class.parameters) {
        match (plugin, &key.to_lowercase()[..]) {
            (Plugin::AwsEbs | Plugin::GcePd | Plugin::AzureDisk, "zone") => zones = Some(vec![value]),
            (Plugin::AwsEbs | Plugin::GcePd | Plugin::AzureDisk, "zones") => {
                zones = Some(value.split(',').map(str::to_owned).collect());
            }
            (Plugin::AwsEbs | Plugin::GcePd | Plugin::Cinder | Plugin::Vsphere, "fstype") => {
                parameters.insert(FS_TYPE.to_owned(), value);
            }
            (Plugin::AwsEbs, "iopspergb") => {
                parameters.insert(key, value);
                // The in-tree plugin raised the IOPS of small volumes to AWS' minimum.
                parameters.insert("allowautoiopspergbincrease".to_owned(), "true".to_owned());
            }
            (Plugin::Portworx, portworx::SECRET_NAME) => insert_secret(&mut parameters, "name", &value),
            (Plugin::Portworx, portworx::SECRET_NAMESPACE) => {
                insert_secret(&mut parameters, "namespace", &value);
            }
            (Plugin::Vsphere, name) => {
                if name == vsphere::STORAGE_POLICY {
                    parameters.insert(name.to_owned(), value);
                } else if VSPHERE_MIGRATED.contains(&name) {
                    parameters.insert(format!("{name}-migrationparam"), value);
                } else {
                    tracing::debug!(class = class.metadata.name, parameter = key, "ignoring parameter");
                }
            }
            _ => {
                parameters.insert(key, value);
            }
        }
    }
    match plugin {
        // The driver then returns the path of the volume.
        Plugin::Vsphere => {
            parameters.insert("csimigration".to_owned(), "true".to_owned());
        }
        Plugin::Portworx => plugin.driver().clone_into(&mut class.provisioner),
        _ => {}
    }
    class.parameters = parameters;
    let Some(zone_label) = zone_label(plugin) else { return Ok(class) };
    match zones {
        Some(_) if !class.allowed_topologies.is_empty() => return Err(TranslationError::ZonesAndTopologies),
        Some(values) => {
            let expression = TopologySelectorExpression { key: zone_label.to_owned(), values };
            class.allowed_topologies =
                vec![TopologySelectorTerm { match_label_expressions: vec![expression] }];
        }
        None => {}
    }
    let expressions = class.allowed_topologies.iter_mut().flat_map(|term| &mut term.match_label_expressions);
    for expression in expressions {
        if [ZONE, BETA_ZONE].contains(&expression.key.as_str()) {
            zone_label.clone_into(&mut expression.key);
        }
        if plugin == Plugin::AzureDisk && expression.key == zone_label {
            unzoned(&mut expression.values);
        }
    }
    Ok(class)
}

fn zone_label(plugin: Plugin) -> Option<&'static str> {
    match plugin {
        Plugin::AwsEbs => Some(aws_ebs::ZONE),
        Plugin::AzureDisk => Some(azure_disk::ZONE),
        Plugin::Cinder => Some(cinder::ZONE),
        Plugin::GcePd => Some(gce_pd::ZONE),
        Plugin::Vsphere => Some(vsphere::ZONE),
        Plugin::AzureFile | Plugin::Portworx => None,
    }
}

fn insert_secret(parameters: &mut Parameters, field: &str, value: &str) {
    for purpose in SECRET_PURPOSES {
        parameters.insert(format!("csi.storage.k8s.io/{purpose}-secret-{field}"), value.to_owned());
    }
}

/// In an Azure region without zones, the in-tree plugin used the number of a failure domain as zone; the driver uses "".
fn unzoned(zones: &mut [String]) {
    for zone in zones {
        if !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_digit()) {
            zone.clear();
        }
    }
}
