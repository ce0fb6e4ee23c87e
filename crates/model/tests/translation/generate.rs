//! Generates volumes and classes of in-tree plugins. Most are valid; some have a value that the plugin does not accept.

use serde_json::{Map, Value, json};
use wharf_model::migration::Plugin;

const ZONES: &[&str] = &[
    "us-east-1a",
    "us-east-1b",
    "us-gov-east-1a",
    "us-west-2-lax-1a",
    "us-east-1-wl1-bos-wlz-1",
    "europe-west1-b",
    "europe-west1-c",
    "us-central1-a",
    "zone",
    "0",
    "westus-1",
    " z ",
    "",
];
const GA_ZONE: &str = "topology.kubernetes.io/zone";
const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const GA_REGION: &str = "topology.kubernetes.io/region";
const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
const OPERATORS: &[&str] = &["In", "In", "In", "NotIn", "Exists"];
const NAMES: &[&str] = &["a", "", "data", "x/y", "pvc-1"];
const FS_TYPES: &[&str] = &["", "ext4", "xfs"];

pub(crate) struct Generator {
    state: u64,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A volume with an in-tree source.
    pub(crate) fn volume(&mut self, plugin: Plugin) -> Value {
        let (field, source) = self.source(plugin);
        let mut object = self.common(plugin);
        object["spec"][field] = source;
        json!({"What": "volume", "Object": object})
    }

    /// A volume that the driver created for a class of the plugin.
    pub(crate) fn created(&mut self, plugin: Plugin) -> Value {
        let mut object = self.common(plugin);
        let handles = [
            "vol-1",
            "projects/p/zones/us-central1-a/disks/d",
            "projects/p/regions/us-central1/disks/d/more",
            "projects/p",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d",
            "/subscriptions//resourceGroups//providers/Microsoft.Compute/disks/d/providers/Microsoft.Compute/disks/e",
            "/subscriptions/s/providers/Microsoft.Compute/disks/d",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/",
            "https://account.blob.core/vhds/d.vhd",
            "http://vhds/d",
            "HTTPS://account.blob.core/vhds/d.vhd",
            "group#account#share#name#ns",
            "#account#share",
            "group#account",
            "",
        ];
        let mut csi = json!({
            "driver": plugin.driver(),
            "volumeHandle": *self.pick(&handles),
            "fsType": *self.pick(FS_TYPES),
            "readOnly": self.chance(30),
        });
        let mut attributes = Map::new();
        for (key, values) in [
            ("partition", &["", "0", "1", "+2", "x", "-1"][..]),
            ("cachingMode", &["", "ReadOnly"]),
            ("fsType", &["", "xfs"]),
            ("shareName", &["", "share"]),
            ("secretname", &["", "secret"]),
            ("SecretNamespace", &["", "ns"]),
            ("initialvolumefilepath", &["[ds] kubevols/a.vmdk"]),
        ] {
            if self.chance(30) {
                attributes.insert(key.to_owned(), json!(*self.pick(values)));
            }
        }
        if self.chance(80) {
            csi["volumeAttributes"] = attributes.into();
        }
        if self.chance(30) {
            csi["nodeStageSecretRef"] =
                json!({"name": *self.pick(&["", "s"]), "namespace": *self.pick(&["", "n"])});
        }
        object["spec"]["csi"] = csi;
        json!({"What": "created", "Object": object})
    }

    pub(crate) fn class(&mut self, plugin: Plugin) -> Value {
        let mut parameters = Map::new();
        for spellings in [
            &["fstype", "fsType", "FSType"][..],
            &["type", "skuname"],
            &["iopsPerGB", "iopspergb"],
            &["storagepolicyname", "storagePolicyName"],
            &["datastore", "Datastore"],
            &["diskformat", "diskFormat"],
            &["hostFailuresToTolerate"],
            &["forceProvisioning"],
            &["cacheReservation"],
            &["diskStripes"],
            &["objectSpaceReservation"],
            &["iopsLimit"],
            &["openstorage.io/auth-secret-name"],
            &["openstorage.io/auth-secret-namespace"],
            &["availability"],
        ] {
            if self.chance(25) {
                parameters.insert((*self.pick(spellings)).to_owned(), json!(*self.pick(&["", "a", "10"])));
            }
        }
        match self.below(6) {
            0 => drop(parameters.insert("zone".to_owned(), json!(*self.pick(ZONES)))),
            1 => drop(parameters.insert("Zones".to_owned(), json!("us-east-1a,us-east-1b, 1"))),
            _ => {}
        }
        let mut class = json!({"metadata": {"name": "c"}, "provisioner": plugin.in_tree_name()});
        if self.chance(90) {
            class["parameters"] = parameters.into();
        }
        if self.chance(50) {
            let keys = self.topology_keys(plugin);
            let mut expression =
                || json!({"key": *self.pick(&keys), "values": [*self.pick(ZONES), *self.pick(ZONES)]});
            let term = json!({"matchLabelExpressions": [expression(), expression()]});
            let other = json!({"matchLabelExpressions": [expression()]});
            class["allowedTopologies"] = json!([term, other]);
        }
        json!({"What": "class", "Object": class})
    }

    pub(crate) fn repair(&mut self, plugin: Plugin) -> Value {
        let handles = [
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "projects/UNSPECIFIED/zones/us-central1-b/disks/d",
            "projects/UNSPECIFIED/regions/UNSPECIFIED/disks/d",
            "projects/UNSPECIFIED/regions/us-central1/disks/d",
            "projects/UNSPECIFIED/other/UNSPECIFIED/disks/d",
            "projects/p/zones/z/disks/d",
            "projects/UNSPECIFIED",
            "vol-1",
        ];
        let nodes =
            ["projects/p/zones/us-central1-a/instances/i", "projects/p/zones/zone/instances/i", "node", ""];
        json!({
            "What": "repair",
            "Driver": plugin.driver(),
            "Handle": *self.pick(&handles),
            "NodeID": *self.pick(&nodes),
        })
    }

    fn source(&mut self, plugin: Plugin) -> (&'static str, Value) {
        let mut source = json!({"fsType": *self.pick(FS_TYPES)});
        if self.chance(50) {
            source["readOnly"] = json!(self.chance(50));
        }
        let field = match plugin {
            Plugin::AwsEbs => {
                let ids = [
                    "vol-1",
                    "aws://us-east-1a/vol-1",
                    "aws:///vol-1",
                    "aws:///vol-1/",
                    "aws:////vol-1",
                    "aws://us-east-1a/x/vol-1",
                    "aws://us-east-1a/disk",
                    "aws://us-east-1a",
                    "aws://",
                    "aws:/x",
                    "",
                ];
                source["volumeID"] = json!(*self.pick(&ids));
                source["partition"] = json!(self.below(3));
                "awsElasticBlockStore"
            }
            Plugin::GcePd => {
                source["pdName"] = json!(*self.pick(NAMES));
                source["partition"] = json!(self.below(3));
                "gcePersistentDisk"
            }
            Plugin::AzureDisk => {
                source["diskName"] = json!("d");
                source["diskURI"] = json!(*self.pick(&["/subscriptions/s/disks/d", ""]));
                for (key, values) in [
                    ("cachingMode", &["", "ReadWrite"][..]),
                    ("kind", &["Managed", "managed", "Managed", "Dedicated"]),
                ] {
                    if self.chance(60) {
                        source[key] = json!(*self.pick(values));
                    }
                }
                if self.chance(20) {
                    source["fsType"] = Value::Null;
                }
                "azureDisk"
            }
            Plugin::AzureFile => {
                let secrets = [
                    "azure-storage-account-acc-secret",
                    "x-azure-storage-account-a-secret-b-secret-y",
                    "azure-storage-account--secret",
                    "azure-storage-account-secret",
                    "plain",
                    "",
                ];
                source = json!({"secretName": *self.pick(&secrets), "shareName": *self.pick(NAMES)});
                if self.chance(50) {
                    source["readOnly"] = json!(true);
                }
                if self.chance(50) {
                    source["secretNamespace"] = json!(*self.pick(&["", "ns"]));
                }
                "azureFile"
            }
            Plugin::Cinder => {
                source["volumeID"] = json!(*self.pick(NAMES));
                "cinder"
            }
            Plugin::Portworx => {
                source["volumeID"] = json!(*self.pick(NAMES));
                "portworxVolume"
            }
            Plugin::Vsphere => {
                source = json!({
                    "volumePath": "[ds] kubevols/a.vmdk",
                    "fsType": *self.pick(FS_TYPES),
                    "storagePolicyName": *self.pick(&["", "gold"]),
                });
                "vsphereVolume"
            }
        };
        (field, source)
    }

    /// Metadata, access modes, claim and node affinity.
    fn common(&mut self, plugin: Plugin) -> Value {
        let modes = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];
        let modes: Vec<_> = modes.into_iter().filter(|_| self.chance(40)).collect();
        let mut object = json!({
            "metadata": {"name": "v"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "c",
                "mountOptions": ["noatime"],
            },
        });
        if !modes.is_empty() {
            object["spec"]["accessModes"] = json!(modes);
        }
        if self.chance(60) {
            object["spec"]["claimRef"] =
                json!({"namespace": *self.pick(&["shop", ""]), "name": "data", "uid": "u"});
        }
        let mut annotations = Map::new();
        for key in [
            "openstorage.io/auth-secret-name",
            "openstorage.io/auth-secret-namespace",
            "kubernetes.io/azure-file-resource-group",
        ] {
            if self.chance(40) {
                annotations.insert(key.to_owned(), json!(*self.pick(&["", "v"])));
            }
        }
        if !annotations.is_empty() {
            object["metadata"]["annotations"] = annotations.into();
        }
        let mut labels = Map::new();
        for key in [GA_ZONE, BETA_ZONE, GA_REGION, BETA_REGION] {
            if self.chance(25) {
                let zones: Vec<_> = (0..=self.below(2)).map(|_| *self.pick(ZONES)).collect();
                labels.insert(key.to_owned(), json!(zones.join("__")));
            }
        }
        if !labels.is_empty() {
            object["metadata"]["labels"] = labels.into();
        }
        if self.chance(60) {
            let keys = self.topology_keys(plugin);
            let terms: Vec<Value> = (0..=self.below(2)).map(|_| self.term(&keys)).collect();
            object["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        }
        object
    }

    fn term(&mut self, keys: &[&str]) -> Value {
        let requirements: Vec<Value> = (0..=self.below(2))
            .map(|_| {
                let operator = *self.pick(OPERATORS);
                let mut requirement = json!({"key": *self.pick(keys), "operator": operator});
                if operator != "Exists" {
                    let region = *self.pick(&["us-east-1", "europe-west1"]);
                    let near: Vec<&str> =
                        ZONES.iter().copied().filter(|zone| zone.starts_with(region)).collect();
                    let zones = if self.chance(70) { &near[..] } else { ZONES };
                    requirement["values"] = json!([*self.pick(zones), *self.pick(zones)]);
                }
                requirement
            })
            .collect();
        let mut term = json!({"matchExpressions": requirements});
        if self.chance(10) {
            term["matchFields"] = json!([{"key": "metadata.name", "operator": "In", "values": ["n"]}]);
        }
        term
    }

    fn topology_keys(&self, plugin: Plugin) -> Vec<&'static str> {
        let driver = match plugin {
            Plugin::AwsEbs => "topology.ebs.csi.aws.com/zone",
            Plugin::AzureDisk => "topology.disk.csi.azure.com/zone",
            Plugin::Cinder => "topology.cinder.csi.openstack.org/zone",
            Plugin::GcePd => "topology.gke.io/zone",
            Plugin::Vsphere => "topology.csi.vmware.com/zone",
            Plugin::AzureFile | Plugin::Portworx => "topology.test/zone",
        };
        let region = if plugin == Plugin::Vsphere { "topology.csi.vmware.com/region" } else { driver };
        vec![driver, driver, region, GA_ZONE, BETA_ZONE, GA_REGION, BETA_REGION, "other"]
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) as usize) % bound
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
