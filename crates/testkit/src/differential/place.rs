//! Where scenarios run: an API, and how our sidecars come to it. As processes they have a kubeconfig; within this
//! process they have the embedded API itself. On the embedded API they are sidecars, with that role's rights; who makes
//! and looks at objects there is an administrator.

use std::path::{Path, PathBuf};

use wharf_apiserver::access::User;
use wharf_apiserver::rest::Api;

use super::Side;
use super::within::Within;
use crate::{Beside, Embedded, Server, TestCluster, built, upstream};

/// A place for scenarios; clones are the same one.
#[derive(Clone)]
pub struct Place {
    way: Way,
    directory: PathBuf,
    /// The kinds of snapshots have to be made, as in any cluster.
    pub(super) is_cluster: bool,
}

#[derive(Clone)]
enum Way {
    Over { admin: PathBuf, sidecar: PathBuf },
    Within(Api),
}

impl Place {
    /// A real cluster. What roles upstream's sidecars need there is another test's business.
    pub fn cluster(cluster: &TestCluster) -> Self {
        let directory = cluster.directory().to_owned();
        let (admin, sidecar) = (cluster.kubeconfig(), cluster.kubeconfig());
        Self { way: Way::Over { admin, sidecar }, directory, is_cluster: true }
    }

    /// `wharf apiserver`, over HTTPS.
    pub fn embedded(server: &Embedded) -> Self {
        let directory = server.directory().to_owned();
        let (admin, sidecar) = (server.kubeconfig().to_owned(), server.kubeconfig_of_sidecar().to_owned());
        Self { way: Way::Over { admin, sidecar }, directory, is_cluster: false }
    }

    /// The embedded API in this process, without a socket. Files that go with it are in the directory.
    pub fn within(api: Api, directory: &Path) -> Self {
        Self { way: Way::Within(api), directory: directory.to_owned(), is_cluster: false }
    }

    /// A client of its API, with all rights.
    pub async fn client(&self) -> Result<kube::Client, String> {
        match &self.way {
            Way::Over { admin, .. } => crate::connect(admin).await,
            Way::Within(api) => Ok(client(api, User::admin())),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn connect(&self) -> Result<Server, String> {
        match &self.way {
            Way::Over { admin, .. } => Server::connect(admin),
            Way::Within(api) => Server::of(|| client(api, User::admin())),
        }
    }

    /// Starts a side's program of this name. `who` is its pod; what it needs is in `dir`.
    pub(super) fn start(
        &self,
        side: Side,
        program: &str,
        args: &[&str],
        who: &str,
        dir: &Path,
        log: &Path,
    ) -> Result<Program, String> {
        match &self.way {
            Way::Over { sidecar, .. } => {
                let kubeconfig = sidecar.display().to_string();
                let args = [&["--kubeconfig", &kubeconfig], args].concat();
                let env = [("POD_NAME", who), ("POD_NAMESPACE", "default")];
                let file = program_of(side, program, dir)?;
                Ok(Program::Process(Beside::start_with(&file, &args, &env, log)))
            }
            Way::Within(_) if side == Side::Upstream => Err("upstream's sidecars are programs".to_owned()),
            Way::Within(api) => {
                let api = api.clone();
                Within::start(program, args, who, move || client(&api, User::sidecar())).map(Program::Within)
            }
        }
    }
}

fn client(api: &Api, user: User) -> kube::Client {
    kube::Client::new(api.service(user), "default")
}

/// A sidecar that runs. It is gone with the value, as by kill -9.
pub(super) enum Program {
    Process(Beside),
    Within(#[allow(dead_code, reason = "it ends when it is dropped")] Within),
}

impl Program {
    /// Starts it again if it has ended by itself.
    pub(super) fn keep_alive(&mut self) {
        // Within this process it has no reason to.
        if let Self::Process(process) = self
            && !process.runs()
        {
            process.restart();
        }
    }
}

/// A side's program of this name: ours is `wharf` by another name, in a directory of one's choice.
fn program_of(side: Side, program: &str, dir: &Path) -> Result<PathBuf, String> {
    if side == Side::Upstream {
        return Ok(upstream(program));
    }
    let link = dir.join(program);
    if !link.exists() {
        std::os::unix::fs::symlink(built("wharf"), &link).map_err(|error| format!("{program}: {error}"))?;
    }
    Ok(link)
}
