//! Claims and PersistentVolumes for the controller of the NFS driver, read from the API server when a call needs them.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OnceCell;
use wharf_cluster::{Cluster, ConnectOptions, WatchOptions};
use wharf_driver_nfs::controller::{ClaimMetadata, ClusterObjects, VolumeMount};
use wharf_model::{Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass};

/// The deadline of one read.
const DEADLINE: Duration = Duration::from_secs(10);

/// The deadline of a list: a cluster can have many volumes.
const LIST_DEADLINE: Duration = Duration::from_secs(60);

/// The API server. It is contacted by calls that need it only: node services have no permission to read anything.
pub(super) struct ApiObjects {
    kubeconfig: Option<PathBuf>,
    driver: String,
    cluster: OnceCell<Cluster>,
}

impl fmt::Debug for ApiObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiObjects").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

impl ApiObjects {
    /// Objects of the driver with this name.
    pub(super) fn new(kubeconfig: Option<PathBuf>, driver: &str) -> Self {
        Self { kubeconfig, driver: driver.to_owned(), cluster: OnceCell::new() }
    }

    async fn cluster(&self) -> Result<&Cluster, String> {
        let options = ConnectOptions { kubeconfig: self.kubeconfig.clone(), ..ConnectOptions::default() };
        let connect = async || Cluster::connect(&options).await.map_err(|error| error.to_string());
        self.cluster.get_or_try_init(connect).await
    }

    async fn read<K: Kind>(&self, key: &Key) -> Result<Option<Value>, String> {
        let read =
            async { self.cluster().await?.get_raw(&K::API, key).await.map_err(|error| error.to_string()) };
        in_time(DEADLINE, read).await
    }

    /// Those that can be decoded.
    async fn list<K: Kind>(&self) -> Result<Vec<K>, String> {
        let list = async {
            let cluster = self.cluster().await?;
            cluster.list::<K>(&WatchOptions::default()).await.map_err(|error| error.to_string())
        };
        in_time(LIST_DEADLINE, list).await.map(|list| list.items)
    }
}

/// The result of a request to the API server, or an error after the deadline.
async fn in_time<T>(
    deadline: Duration,
    request: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::time::timeout(deadline, request)
        .await
        .unwrap_or_else(|_| Err(format!("the API server did not answer within {} s", deadline.as_secs())))
}

#[async_trait::async_trait]
impl ClusterObjects for ApiObjects {
    async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimMetadata>, String> {
        let claim = self.read::<PersistentVolumeClaim>(&Key::namespaced(namespace, name)).await?;
        Ok(claim.as_ref().map(claim_metadata))
    }

    async fn volume(&self, name: &str) -> Result<Option<VolumeMount>, String> {
        let volume = self.read::<PersistentVolume>(&Key::cluster(name)).await?;
        Ok(volume.as_ref().and_then(volume_mount))
    }

    async fn users(&self) -> Result<Vec<VolumeMount>, String> {
        let classes = self.list::<StorageClass>().await?;
        let volumes = self.list::<PersistentVolume>().await?;
        Ok(users(&self.driver, classes, volumes))
    }
}

fn users(driver: &str, classes: Vec<StorageClass>, volumes: Vec<PersistentVolume>) -> Vec<VolumeMount> {
    let classes = classes.into_iter().filter(|class| class.provisioner == driver).map(|class| VolumeMount {
        handle: String::new(),
        attributes: class.parameters,
        mount_options: class.mount_options,
    });
    let volumes = volumes.into_iter().filter_map(|volume| {
        let csi = volume.spec.csi.filter(|csi| csi.driver == driver)?;
        let pairs = csi.volume_attributes.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        Some(VolumeMount {
            attributes: pairs.collect(),
            handle: csi.volume_handle,
            mount_options: volume.spec.mount_options,
        })
    });
    classes.chain(volumes).collect()
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn claim_metadata(claim: &Value) -> ClaimMetadata {
    let metadata = &claim["metadata"];
    ClaimMetadata { labels: texts(&metadata["labels"]), annotations: texts(&metadata["annotations"]) }
}

/// `None` for a volume that is not a CSI volume.
fn volume_mount(volume: &Value) -> Option<VolumeMount> {
    let csi = &volume["spec"]["csi"];
    let options = volume["spec"]["mountOptions"].as_array().into_iter().flatten();
    Some(VolumeMount {
        handle: csi["volumeHandle"].as_str()?.to_owned(),
        attributes: texts(&csi["volumeAttributes"]),
        mount_options: options.filter_map(|option| Some(option.as_str()?.to_owned())).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_and_mount_options_are_read_from_the_objects() {
        let claim = json!({"metadata": {"name": "c", "labels": {"team": "blue"}, "annotations": {"a": "b"}}});
        let expected = ClaimMetadata {
            labels: BTreeMap::from([("team".to_owned(), "blue".to_owned())]),
            annotations: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        };
        assert_eq!(claim_metadata(&claim), expected);
        assert_eq!(claim_metadata(&json!({"metadata": {"name": "c"}})), ClaimMetadata::default());
        let csi = json!({"volumeHandle": "srv#share#pvc-1##", "volumeAttributes": {"server": "srv"}});
        let volume = json!({"spec": {"mountOptions": ["nfsvers=4.1", "sec=krb5p"], "csi": csi}});
        let expected = VolumeMount {
            handle: "srv#share#pvc-1##".to_owned(),
            attributes: BTreeMap::from([("server".to_owned(), "srv".to_owned())]),
            mount_options: vec!["nfsvers=4.1".to_owned(), "sec=krb5p".to_owned()],
        };
        assert_eq!(volume_mount(&volume), Some(expected));
        assert_eq!(volume_mount(&json!({"spec": {"nfs": {"server": "srv", "path": "/x"}}})), None);
    }

    #[test]
    fn users_are_the_classes_and_volumes_of_the_driver() {
        let class = |provisioner: &str| -> StorageClass {
            serde_json::from_value(json!({
                "metadata": {"name": "c"}, "provisioner": provisioner,
                "parameters": {"server": "srv", "share": "/a"}, "mountOptions": ["nfsvers=4.1"]
            }))
            .unwrap()
        };
        let volume = |driver: &str| -> PersistentVolume {
            let csi = json!({"driver": driver, "volumeHandle": "h", "volumeAttributes": {"server": "srv"}});
            serde_json::from_value(json!({"metadata": {"name": "v"}, "spec": {"csi": csi}})).unwrap()
        };
        let found = users("nfs", vec![class("nfs"), class("other")], vec![volume("other"), volume("nfs")]);
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let class = VolumeMount {
            handle: String::new(),
            attributes: text(&[("server", "srv"), ("share", "/a")]),
            mount_options: vec!["nfsvers=4.1".to_owned()],
        };
        let volume = VolumeMount {
            handle: "h".to_owned(),
            attributes: text(&[("server", "srv")]),
            mount_options: vec![],
        };
        assert_eq!(found, [class, volume]);
    }
}
