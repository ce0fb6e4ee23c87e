//! `wharf install`: what a cluster has to know before controllers can work there. So far the kinds of snapshots.
//!
//! Promise: nothing that is there is taken away. A version stays served and stored as it was, a field stays, and a
//! definition that is newer than ours stays whole; where neither is newer, it is refused and said why.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use wharf_cluster::{ApiError, Cluster, ConnectOptions};
use wharf_model::{Api, Key, Scope};

use plan::{Plan, plan};

mod plan;

/// How long the server may take to serve a new kind.
const ESTABLISHED: Duration = Duration::from_secs(30);
/// So often somebody else may change a definition under our hands.
const TRIES: usize = 5;

const API: Api = Api {
    group: "apiextensions.k8s.io",
    version: "v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    scope: Scope::Cluster,
};

/// The definitions, as they are shipped.
const CRDS: [&str; 7] = [
    include_str!("../../../deploy/crds/volumesnapshotclasses.yaml"),
    include_str!("../../../deploy/crds/volumesnapshotcontents.yaml"),
    include_str!("../../../deploy/crds/volumesnapshots.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshotclasses.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshotcontents.yaml"),
    include_str!("../../../deploy/crds/volumegroupsnapshots.yaml"),
    include_str!("../../../deploy/crds/snapshotmetadataservices.yaml"),
];

const EXPLANATION: &str = "\
VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass (snapshot.storage.k8s.io/v1) and their group twins
(groupsnapshot.storage.k8s.io/v1 and v1beta2) with their validation rules, and SnapshotMetadataService
(cbt.storage.k8s.io/v1beta1). What is there already is upgraded if it lacks something, and otherwise left alone: no
version and no field is taken away, and it can be run any number of times. A definition that is neither older nor
newer, or does not serve what we need, is refused, with the reason; the exit status is then 1.

Examples:
  wharf install crds --kubeconfig ~/.kube/config
  wharf install crds --print > crds.yaml";

/// Prepare a cluster
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Crds(CrdArgs),
}

/// Make the kinds of snapshots known, or upgrade them
#[derive(Debug, clap::Args)]
#[command(after_help = EXPLANATION)]
struct CrdArgs {
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Print the definitions instead
    #[arg(long, conflicts_with = "kubeconfig")]
    print: bool,
}

/// `wharf install`.
pub(crate) async fn run(args: InstallArgs) -> anyhow::Result<()> {
    let What::Crds(CrdArgs { kubeconfig, print }) = args.what;
    if print {
        print!("{}", CRDS.join("---\n"));
        return Ok(());
    }
    let connect = ConnectOptions { kubeconfig, ..ConnectOptions::default() };
    let cluster = Cluster::connect(&connect).await?;
    let mut refused = 0;
    for crd in CRDS {
        let crd: Value = serde_saphyr::from_str(crd).context("a definition that was shipped is no YAML")?;
        let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let done = install(&cluster, name, &crd).await.with_context(|| format!("cannot install {name}"))?;
        match done {
            Done::Created => println!("created   {name}"),
            Done::Upgraded(what) => println!("upgraded  {name}: {what}"),
            Done::Kept(why) => println!("unchanged {name}: {why}"),
            Done::Refused(why) => {
                refused += 1;
                println!("refused   {name}: {why}");
            }
        }
    }
    match refused {
        0 => Ok(()),
        refused => anyhow::bail!("{refused} definitions were left as they are, for the reasons above"),
    }
}

/// What came of a definition.
enum Done {
    Created,
    Upgraded(String),
    Kept(String),
    Refused(String),
}

async fn install(cluster: &Cluster, name: &str, ours: &Value) -> Result<Done, ApiError> {
    let key = Key::cluster(name);
    let mut tries = 0;
    loop {
        tries += 1;
        let written = match cluster.get_raw(&API, &key).await? {
            None => cluster.create(&API, None, ours).await.map(|_| Done::Created),
            Some(there) => match plan(&there, ours) {
                Plan::Keep(why) => return Ok(Done::Kept(why)),
                Plan::Refuse(why) => return Ok(Done::Refused(why)),
                Plan::Write { object, what } => {
                    cluster.update(&API, &key, None, &object).await.map(|_| Done::Upgraded(what))
                }
            },
        };
        match written {
            Ok(done) => {
                established(cluster, &key).await?;
                return Ok(done);
            }
            Err(ApiError::Conflict(_) | ApiError::AlreadyExists(_)) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the kind is served. One that is not after a while will be, or the server says why not.
async fn established(cluster: &Cluster, key: &Key) -> Result<(), ApiError> {
    let started = Instant::now();
    while started.elapsed() < ESTABLISHED {
        let there = cluster.get_raw(&API, key).await?.unwrap_or_default();
        let conditions = there.pointer("/status/conditions").and_then(Value::as_array);
        let is = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        if conditions.is_some_and(|conditions| conditions.iter().any(is)) {
            return Ok(());
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}
