//! The snapshot-controller, which serves a whole cluster: one for all scenarios of a side.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Side;
use super::ground::{ARGS, GROUPS};
use super::place::{Place, Program};

const PROGRAM: &str = "snapshot-controller";
const CRDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
/// How long the server may take to serve a new kind.
const PATIENCE: Duration = Duration::from_secs(60);

/// The snapshot-controller of a side. It ends with the value.
pub struct Controller {
    side: Side,
    place: Place,
    log: PathBuf,
    process: Option<Program>,
}

impl Controller {
    /// One that does not run yet.
    pub fn new(place: &Place, logs: &Path, side: Side) -> Self {
        Self { side, place: place.clone(), log: logs.join(format!("{PROGRAM}-{side}.log")), process: None }
    }

    /// Starts it, and once for both sides the kinds that it is about.
    pub fn start(&mut self) -> Result<(), String> {
        self.install()?;
        fs::create_dir_all(self.log.parent().unwrap_or(&self.log)).map_err(|error| error.to_string())?;
        let dir = self.place.directory();
        let args = [&ARGS[..], &[GROUPS]].concat();
        self.process = Some(self.place.start(self.side, PROGRAM, &args, PROGRAM, dir, &self.log)?);
        Ok(())
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Makes the kinds that are not there, and waits until they are served.
    fn install(&self) -> Result<(), String> {
        if !self.place.is_cluster {
            return Ok(());
        }
        let server = self.place.connect()?;
        for entry in fs::read_dir(CRDS).map_err(|error| format!("{CRDS}: {error}"))?.flatten() {
            let text = fs::read_to_string(entry.path()).map_err(|error| error.to_string())?;
            let kind: Value = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
            let object = format!("crd/{}", kind["metadata"]["name"].as_str().unwrap_or_default());
            if server.get("", &object)?.is_none() {
                server.create("", &kind)?;
            }
            let end = Instant::now() + PATIENCE;
            while !server.get("", &object)?.is_some_and(|kind| is_served(&kind)) {
                if Instant::now() > end {
                    return Err(format!("{object} is not served within {PATIENCE:?}"));
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
