//! In-tree volumes that were migrated to the driver and cannot be translated for it: a role warns of them at start.

use wharf_cluster::Store;
use wharf_model::PersistentVolume;
use wharf_model::names::annotation;

/// Why a volume that was migrated to this driver cannot be served. `None`: it can be, or it is not migrated to the driver.
fn obstacle(volume: &PersistentVolume, driver: &str) -> Option<String> {
    let marked = volume.metadata.annotation(annotation::MIGRATED_TO) == Some(driver);
    match volume.translation_error() {
        Some(error) => volume.is_migrated_to(driver).then(|| error.to_string()),
        None if marked && volume.csi_source().is_none() => {
            Some("there is no translation for its source".to_owned())
        }
        None => None,
    }
}

/// Warns of the volumes that were migrated to this driver and that the role cannot serve.
pub(crate) fn warn_of_unserved_volumes(role: &str, driver: &str, volumes: &Store<PersistentVolume>) {
    let volumes = volumes.all();
    let mut unserved = volumes.iter().filter_map(|volume| Some((volume, obstacle(volume, driver)?)));
    if let Some((first, error)) = unserved.next() {
        tracing::warn!(
            role,
            driver,
            pv = first.metadata.name,
            error,
            count = 1 + unserved.count(),
            "in-tree volumes were migrated to the driver and cannot be translated for it; they are not served"
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_without_translation_are_unserved() {
        const AZURE: &str = "disk.csi.azure.com";
        let marked = |driver: &str| json!({"annotations": {annotation::MIGRATED_TO: driver}});
        let unmanaged = || json!({"azureDisk": {"diskURI": "/d", "kind": "Dedicated"}});
        for (metadata, spec, unserved) in [
            (json!({}), unmanaged(), true),
            (marked(AZURE), unmanaged(), true),
            (marked(AZURE), json!({"rbd": {"image": "i"}}), true),
            (marked("d.test"), json!({"rbd": {"image": "i"}}), false),
            (json!({}), json!({"rbd": {"image": "i"}}), false),
            (marked(AZURE), json!({"azureDisk": {"diskURI": "/d"}}), false),
            (json!({}), json!({"awsElasticBlockStore": {"volumeID": "aws://z/disk"}}), false),
            (marked(AZURE), json!({"csi": {"driver": AZURE, "volumeHandle": "h"}}), false),
        ] {
            let object: Value = json!({"metadata": metadata, "spec": spec});
            let volume: PersistentVolume = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(obstacle(&volume, AZURE).is_some(), unserved, "{object}");
        }
    }
}
