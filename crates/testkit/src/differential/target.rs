//! The API server that scenarios run against, and how our sidecars connect to it: as processes with a kubeconfig,
//! or in this process directly on the embedded API. On the embedded API the sidecars have the rights of the sidecar
//! role; the test itself is an administrator.

use std::path::{Path, PathBuf};

use wharf_apiserver::access::User;
use wharf_apiserver::rest::Api;

use super::Side;
use super::in_process::InProcessSidecar;
use crate::{ApiClient, ChildProcess, EmbeddedServer, TestCluster, built_program, upstream_program};

/// An API server for scenarios; clones refer to the same server.
#[derive(Clone)]
pub struct ApiTarget {
    access: Access,
    directory: PathBuf,
    /// The snapshot CRDs must be installed, as in any cluster.
    pub(super) is_cluster: bool,
}

#[derive(Clone)]
enum Access {
    Kubeconfig { admin: PathBuf, sidecar: PathBuf },
    InProcess(Api),
}

impl ApiTarget {
    /// A real cluster. Sidecars run with administrator rights: another test covers their RBAC rules.
    pub fn cluster(cluster: &TestCluster) -> Self {
        let directory = cluster.directory().to_owned();
        let (admin, sidecar) = (cluster.kubeconfig(), cluster.kubeconfig());
        Self { access: Access::Kubeconfig { admin, sidecar }, directory, is_cluster: true }
    }

    /// `wharf apiserver`, over HTTPS.
    pub fn embedded(server: &EmbeddedServer) -> Self {
        let directory = server.directory().to_owned();
        let (admin, sidecar) = (server.kubeconfig().to_owned(), server.sidecar_kubeconfig().to_owned());
        Self { access: Access::Kubeconfig { admin, sidecar }, directory, is_cluster: false }
    }

    /// The embedded API in this process, without a socket. Related files are in `directory`.
    pub fn in_process(api: Api, directory: &Path) -> Self {
        Self { access: Access::InProcess(api), directory: directory.to_owned(), is_cluster: false }
    }

    /// A client with administrator rights.
    pub async fn client(&self) -> Result<kube::Client, String> {
        match &self.access {
            Access::Kubeconfig { admin, .. } => crate::connect(admin).await,
            Access::InProcess(api) => Ok(client(api, User::admin())),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn connect(&self) -> Result<ApiClient, String> {
        match &self.access {
            Access::Kubeconfig { admin, .. } => ApiClient::connect(admin),
            Access::InProcess(api) => ApiClient::from_client(|| client(api, User::admin())),
        }
    }

    /// Starts a side's program by upstream's name. `pod` is its pod name; its files are in `dir`.
    pub(super) fn start(
        &self,
        side: Side,
        program: &str,
        args: &[&str],
        pod: &str,
        dir: &Path,
        log: &Path,
    ) -> Result<SidecarProcess, String> {
        match &self.access {
            Access::Kubeconfig { sidecar, .. } => {
                let kubeconfig = sidecar.display().to_string();
                let args = [&["--kubeconfig", &kubeconfig], args].concat();
                let env = [("POD_NAME", pod), ("POD_NAMESPACE", "default")];
                let file = program_of(side, program, dir)?;
                Ok(SidecarProcess::Process(ChildProcess::start_with(&file, &args, &env, log)))
            }
            Access::InProcess(_) if side == Side::Upstream => {
                Err("upstream's sidecars cannot run in this process".to_owned())
            }
            Access::InProcess(api) => {
                let api = api.clone();
                InProcessSidecar::start(program, args, pod, move || client(&api, User::sidecar()))
                    .map(SidecarProcess::InProcess)
            }
        }
    }
}

fn client(api: &Api, user: User) -> kube::Client {
    kube::Client::new(api.service(user), "default")
}

/// A running sidecar. Dropping it acts like kill -9.
pub(super) enum SidecarProcess {
    Process(ChildProcess),
    InProcess(#[allow(dead_code, reason = "dropping it ends the sidecar")] InProcessSidecar),
}

impl SidecarProcess {
    /// Restarts it if it exited on its own.
    pub(super) fn restart_if_exited(&mut self) {
        // An in-process sidecar does not exit on its own.
        if let Self::Process(process) = self
            && !process.is_running()
        {
            process.restart();
        }
    }
}

/// The path of a side's program by upstream's name: ours is a link to `wharf` in `dir`.
fn program_of(side: Side, program: &str, dir: &Path) -> Result<PathBuf, String> {
    if side == Side::Upstream {
        return Ok(upstream_program(program));
    }
    let link = dir.join(program);
    if !link.exists() {
        std::os::unix::fs::symlink(built_program("wharf"), &link)
            .map_err(|error| format!("{program}: {error}"))?;
    }
    Ok(link)
}
