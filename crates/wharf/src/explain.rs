//! `wharf explain`: why is my volume not there yet.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use wharf_cluster::{Cluster, ConnectOptions, now};
use wharf_explain::Subject;

use crate::ExitStatus;
use crate::output::Format;
use crate::up::Place;

const EXPLANATION: &str = "\
Walks from a claim to its volume, its attachment, its node and its driver, and says which step waits, for what, since when
and whose turn it is, with the last error of each. It reads only; what it may not read it says so.

  wharf explain pvc/data
  wharf explain pod/db-0 --namespace shop
  wharf explain pv/pvc-0f3c… --output json
  wharf explain volumesnapshot/before --attempts 127.0.0.1:9808

Exit status: 0 nothing is waited for, 3 something waits, 4 the last try failed, 5 it cannot be told; 1 the server could not
be asked.";

/// Say why a claim, pod, volume or snapshot is not there yet
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct ExplainArgs {
    /// pvc/NAME, pod/NAME, pv/NAME or volumesnapshot/NAME
    #[arg(value_name = "KIND/NAME")]
    subject: Subject,
    /// Its namespace [default: that of the kubeconfig]
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Credentials for the cluster [default: KUBECONFIG, or else your own]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where a sidecar has its pages, to ask it what it tried: HOST:PORT, or unix://SOCKET [default: that of `wharf up`,
    /// if its kubeconfig is used]
    #[arg(long, value_name = "ADDRESS")]
    attempts: Option<String>,
    /// How to print
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { mut subject, namespace, kubeconfig, attempts, output } = args;
    let attempts = attempts.or_else(|| pages_of_up(kubeconfig.as_deref()?));
    let cluster = Cluster::connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?;
    subject.namespace = namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
    let story = wharf_explain::explain(&cluster, &subject, attempts.as_deref(), now()).await?;
    let mut stdout = std::io::stdout().lock();
    match output {
        Format::Table => write!(stdout, "{story}")?,
        Format::Json => writeln!(stdout, "{:#}", story.json())?,
    }
    match story.exit_status() {
        0 => Ok(()),
        status => Err(ExitStatus(status).into()),
    }
}

/// The pages of a `wharf up` that this kubeconfig is of, if we can reach them.
fn pages_of_up(kubeconfig: &Path) -> Option<String> {
    let socket = Place::find(kubeconfig.parent()?).ok()?.pages();
    socket.exists().then(|| format!("unix://{}", socket.display()))
}
