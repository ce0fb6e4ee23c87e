//! `wharf explain`: why a claim, pod, volume or snapshot is not ready.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use wharf_cluster::{Cluster, ConnectOptions, now};
use wharf_explain::Subject;

use crate::ExitStatus;
use crate::output::Format;
use crate::up::DataDir;

const AFTER_HELP: &str = "\
Follows the object from claim to volume, attachment, node and driver. For each step that is not done, it prints what the \
step is waiting for, since when, which component has to act, and the last error. The command only reads. If it lacks \
permission to read an object, it says so.

Examples:
  wharf explain pvc/data
  wharf explain pod/db-0 --namespace shop
  wharf explain pv/pvc-0f3c… --output json
  wharf explain volumesnapshot/before --attempts 127.0.0.1:9808

Exit status:
  0  nothing is pending
  1  the API server cannot be reached
  3  a step is waiting
  4  the last attempt of a step failed
  5  the state cannot be determined";

/// Explain why a claim, pod, volume or snapshot is not ready
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ExplainArgs {
    /// pvc/NAME, pod/NAME, pv/NAME or volumesnapshot/NAME
    #[arg(value_name = "KIND/NAME")]
    subject: Subject,
    /// Namespace of the object [default: the kubeconfig's]
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Kubeconfig file [default: KUBECONFIG, else the pod's service account or ~/.kube/config]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Address of a sidecar's HTTP endpoint, to include its last attempts: HOST:PORT or unix://SOCKET [default: the socket of
    /// `wharf up`, if its kubeconfig is used]
    #[arg(long, value_name = "ADDRESS")]
    attempts: Option<String>,
    /// Output format
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

pub(crate) async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { mut subject, namespace, kubeconfig, attempts, output } = args;
    let attempts = attempts.or_else(|| status_socket_of_up(kubeconfig.as_deref()?));
    let cluster = Cluster::connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?;
    subject.namespace = namespace.unwrap_or_else(|| cluster.default_namespace().to_owned());
    let explanation = wharf_explain::explain(&cluster, &subject, attempts.as_deref(), now()).await?;
    let mut stdout = std::io::stdout().lock();
    match output {
        Format::Table => write!(stdout, "{explanation}")?,
        Format::Json => writeln!(stdout, "{:#}", explanation.json())?,
    }
    match explanation.exit_status() {
        0 => Ok(()),
        status => Err(ExitStatus(status).into()),
    }
}

/// The status socket of the `wharf up` that wrote this kubeconfig, if this process can access it.
fn status_socket_of_up(kubeconfig: &Path) -> Option<String> {
    let socket = DataDir::open(kubeconfig.parent()?).ok()?.status_socket();
    socket.exists().then(|| format!("unix://{}", socket.display()))
}
