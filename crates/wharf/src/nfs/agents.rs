//! The agents of NFS servers, as flags: of the driver, and of the tools that write its records.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use wharf_driver_nfs::agent::{AgentAccess, TlsFiles};

/// Flags that name agents.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// The agent (`wharf nfs-server`) of a server, as SERVER=https://HOST[:PORT]; can be repeated. SERVER is the name in
    /// StorageClasses. The controller then limits volumes to their size
    #[arg(
        long,
        value_name = "SERVER=URL",
        value_delimiter = ',',
        requires_all = ["agent_ca", "agent_cert", "agent_key"]
    )]
    server_agent: Vec<String>,
    /// Authority of the agents' certificates, in PEM
    #[arg(long, value_name = "FILE")]
    agent_ca: Option<PathBuf>,
    /// Certificate of this driver for agents, in PEM
    #[arg(long, value_name = "FILE")]
    agent_cert: Option<PathBuf>,
    /// Private key of --agent-cert, in PEM
    #[arg(long, value_name = "FILE")]
    agent_key: Option<PathBuf>,
}

impl AgentArgs {
    /// The agents by server.
    pub(crate) fn access(&self, mount_dir: &Path) -> anyhow::Result<BTreeMap<String, AgentAccess>> {
        match (&self.agent_ca, &self.agent_cert, &self.agent_key) {
            (Some(ca), Some(cert), Some(key)) => {
                let tls = TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() };
                agents(&self.server_agent, &tls, mount_dir)
            }
            _ => Ok(BTreeMap::new()),
        }
    }
}

/// The agents by server. A typing error in a path is found here, not at the first volume.
fn agents(
    flags: &[String],
    tls: &TlsFiles,
    mount_dir: &Path,
) -> anyhow::Result<BTreeMap<String, AgentAccess>> {
    for file in [&tls.ca, &tls.cert, &tls.key] {
        if file.starts_with(mount_dir) {
            bail!(
                "{} is in --working-mount-dir {}, over which workers mount: move it",
                file.display(),
                mount_dir.display()
            );
        }
    }
    tls.client().context("certificates for --server-agent")?;
    let mut agents = BTreeMap::new();
    for flag in flags {
        let (server, url) = flag.split_once('=').with_context(|| format!("use SERVER=URL, not {flag:?}"))?;
        let server = server.trim_start_matches('[').trim_end_matches(']');
        let access = AgentAccess::parse(url, tls.clone()).map_err(anyhow::Error::msg)?;
        if server.is_empty() || agents.insert(server.to_owned(), access).is_some() {
            bail!("--server-agent {flag:?}: name each server once");
        }
    }
    Ok(agents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_need_readable_certificates_outside_of_the_mount_directory() {
        let dir = tempfile::tempdir().unwrap();
        let files = |dir: &Path| TlsFiles {
            ca: dir.join("ca.pem"),
            cert: dir.join("driver.pem"),
            key: dir.join("driver.key"),
        };
        let flags = ["nas=https://nas:9820".to_owned()];
        let error = agents(&flags, &files(dir.path()), dir.path()).unwrap_err();
        assert!(error.to_string().contains("--working-mount-dir"), "{error:#}");
        let error = agents(&flags, &files(dir.path()), Path::new("/nonexistent")).unwrap_err();
        assert!(format!("{error:#}").contains("driver.key"), "{error:#}");
    }
}
