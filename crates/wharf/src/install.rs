//! `wharf install`: installs what the controllers need in a cluster: the snapshot CRDs.
//!
//! Guarantee: an install never removes anything. Versions stay served and stored as they were, fields stay, and a newer
//! CRD stays unchanged. If neither the installed CRD nor ours is newer, the install refuses it with a reason. `plan`
//! contains the rules.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use wharf_cluster::{ApiError, Cluster, ConnectOptions};
use wharf_model::{ApiResource, Key, Scope};

use plan::{Plan, plan};

mod plan;

/// How long to wait for a CRD to be established.
const ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a write is retried because another client has changed the CRD.
const MAX_CONFLICT_RETRIES: usize = 5;

const API: ApiResource = ApiResource {
    group: "apiextensions.k8s.io",
    version: "v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    scope: Scope::Cluster,
};

/// The CRDs, as in deploy/crds.
const CRDS: [&str; 7] = [
    include_str!("../../../deploy/crds/volumesnapshotclasses.yaml"),
    include_str!("../../../deploy/crds/volumesnapshotcontents.yaml"),
    include_str!("../../../deploy/crds/volumesnapshots.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshotclasses.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshotcontents.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshots.yaml"),
    include_str!("../../../deploy/crds/snapshotmetadataservices.yaml"),
];

const AFTER_HELP: &str = "\
Installs these CustomResourceDefinitions, with their validation rules:

  snapshot.storage.k8s.io/v1
    VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass
  groupsnapshot.storage.k8s.io/v1 and v1beta2
    VolumeGroupSnapshot, VolumeGroupSnapshotContent, VolumeGroupSnapshotClass
  cbt.storage.k8s.io/v1beta1
    SnapshotMetadataService

An existing CRD is upgraded if it lacks a version or field, and otherwise left unchanged. No version and no field is ever \
removed. You can run the command any number of times. A CRD that is neither older nor newer, or does not serve the required \
version, is refused with the reason, and the exit status is 1.

Examples:
  wharf install crds --kubeconfig ~/.kube/config
  wharf install crds --print > crds.yaml";

/// Install CRDs in a cluster
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    #[command(subcommand)]
    target: Target,
}

#[derive(Debug, clap::Subcommand)]
enum Target {
    Crds(CrdArgs),
}

/// Install or upgrade the snapshot CRDs
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
struct CrdArgs {
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Print the CRDs as YAML instead of installing them
    #[arg(long, conflicts_with = "kubeconfig")]
    print: bool,
}

/// `wharf install`.
pub(crate) async fn run(args: InstallArgs) -> anyhow::Result<()> {
    let Target::Crds(CrdArgs { kubeconfig, print }) = args.target;
    if print {
        print!("{}", CRDS.join("---\n"));
        return Ok(());
    }
    let connect = ConnectOptions { kubeconfig, ..ConnectOptions::default() };
    let cluster = Cluster::connect(&connect).await?;
    let mut refused = 0;
    for crd in CRDS {
        let crd: Value = serde_saphyr::from_str(crd).context("an embedded CRD is not valid YAML")?;
        let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let done =
            install(&cluster, name, &crd).await.with_context(|| format!("failed to install {name}"))?;
        match done {
            Outcome::Created => println!("created   {name}"),
            Outcome::Upgraded(what) => println!("upgraded  {name}: {what}"),
            Outcome::Kept(reason) => println!("unchanged {name}: {reason}"),
            Outcome::Refused(reason) => {
                refused += 1;
                println!("refused   {name}: {reason}");
            }
        }
    }
    match refused {
        0 => Ok(()),
        refused => anyhow::bail!("{refused} CRDs were refused and left unchanged, for the reasons above"),
    }
}

/// The result for one CRD.
enum Outcome {
    Created,
    Upgraded(String),
    Kept(String),
    Refused(String),
}

async fn install(cluster: &Cluster, name: &str, ours: &Value) -> Result<Outcome, ApiError> {
    let key = Key::cluster(name);
    let mut tries = 0;
    loop {
        tries += 1;
        let written = match cluster.get_raw(&API, &key).await? {
            None => cluster.create(&API, None, ours).await.map(|_| Outcome::Created),
            Some(existing) => match plan(&existing, ours) {
                Plan::Keep(reason) => return Ok(Outcome::Kept(reason)),
                Plan::Refuse(reason) => return Ok(Outcome::Refused(reason)),
                Plan::Write { object, what } => {
                    cluster.update(&API, &key, None, &object).await.map(|_| Outcome::Upgraded(what))
                }
            },
        };
        match written {
            Ok(done) => {
                wait_until_established(cluster, &key).await?;
                return Ok(done);
            }
            Err(ApiError::Conflict(_) | ApiError::AlreadyExists(_)) if tries < MAX_CONFLICT_RETRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the CRD is established. A timeout is not an error: the server establishes it later, or reports the reason
/// in the status.
async fn wait_until_established(cluster: &Cluster, key: &Key) -> Result<(), ApiError> {
    let started = Instant::now();
    while started.elapsed() < ESTABLISHED_TIMEOUT {
        let existing = cluster.get_raw(&API, key).await?.unwrap_or_default();
        let conditions = existing.pointer("/status/conditions").and_then(Value::as_array);
        let is = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        if conditions.is_some_and(|conditions| conditions.iter().any(is)) {
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
