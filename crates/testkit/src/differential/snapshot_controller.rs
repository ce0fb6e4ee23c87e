//! The snapshot-controller, which serves a whole cluster: one process for all scenarios of a side.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Side;
use super::runner::{ARGS, GROUPS};
use super::target::{ApiTarget, SidecarProcess};

const PROGRAM: &str = "snapshot-controller";
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
/// How long the API server may take to serve a new kind.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The snapshot-controller of a side. Dropping the value kills it.
pub struct SnapshotController {
    side: Side,
    target: ApiTarget,
    log: PathBuf,
    process: Option<SidecarProcess>,
}

impl SnapshotController {
    /// Not started yet.
    pub fn new(target: &ApiTarget, logs: &Path, side: Side) -> Self {
        Self { side, target: target.clone(), log: logs.join(format!("{PROGRAM}-{side}.log")), process: None }
    }

    /// Starts it, after installing its CRDs.
    pub fn start(&mut self) -> Result<(), String> {
        self.install()?;
        fs::create_dir_all(self.log.parent().unwrap_or(&self.log)).map_err(|error| error.to_string())?;
        let dir = self.target.directory();
        let args = [&ARGS[..], &[GROUPS]].concat();
        self.process = Some(self.target.start(self.side, PROGRAM, &args, PROGRAM, dir, &self.log)?);
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Creates missing CRDs and waits until they are served.
    fn install(&self) -> Result<(), String> {
        if !self.target.is_cluster {
            return Ok(());
        }
        let server = self.target.connect()?;
        for entry in fs::read_dir(CRDS).map_err(|error| format!("{CRDS}: {error}"))?.flatten() {
            let text = fs::read_to_string(entry.path()).map_err(|error| error.to_string())?;
            let kind: Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
            let object = format!("crd/{}", kind["metadata"]["name"].as_str().unwrap_or_default());
            if server.get("", &object)?.is_none() {
                server.create("", &kind)?;
            }
            let end = Instant::now() + TIMEOUT;
            while !server.get("", &object)?.is_some_and(|kind| is_served(&kind)) {
                if Instant::now() > end {
                    return Err(format!("{object} was not established within {TIMEOUT:?}"));
                }
                sleep(Duration::from_millis(100));
            }
        }
        Ok(())
    }
}

fn is_served(kind: &Value) -> bool {
    let conditions = kind["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == "Established" && it["status"] == "True")
}
