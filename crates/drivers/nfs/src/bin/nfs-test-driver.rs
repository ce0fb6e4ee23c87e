//! The NFS driver on directories of this machine, for tests without a kernel NFS client: exports are directories, and volumes
//! are bound at their targets instead of mounted. Everything else is the driver's own code, worker processes included.
//!
//! `nfs-test-driver --endpoint unix:///tmp/csi.sock --node-id n1 --export NAME=DIR …`: the directory `DIR/SHARE` is the export
//! `/SHARE` of server NAME.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use wharf_driver::{Endpoint, ServeOptions};
use wharf_driver_nfs::controller::ControllerOptions;
use wharf_driver_nfs::node::NodeOptions;
use wharf_driver_nfs::worker::{self, Exports, WorkerLog, WorkerOptions, WorkerProgram};
use wharf_driver_nfs::{Config, DRIVER_NAME, driver};

fn main() -> ExitCode {
    if let Some(code) = worker::main(std::env::args_os()) {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nfs-test-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run() -> Result<(), Box<dyn Error>> {
    let (mut endpoint, mut node_id, mut exports) = (None, None, BTreeMap::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--endpoint" => endpoint = Some(value.parse::<Endpoint>()?),
            "--node-id" => node_id = Some(value),
            "--export" => {
                let (name, directory) = value.split_once('=').ok_or("--export needs NAME=DIR")?;
                exports.insert(name.to_owned(), PathBuf::from(directory).canonicalize()?);
            }
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let config = Config {
        driver_name: DRIVER_NAME.to_owned(),
        node_id: node_id.ok_or("--node-id is missing")?,
        exports: Exports::Directories(exports),
        program: WorkerProgram::default().log(WorkerLog { filter: "info".to_owned(), json: false }),
        workers: WorkerOptions::default(),
        controller: ControllerOptions::default(),
        node: NodeOptions { usage_cache: Duration::ZERO, ..NodeOptions::default() },
        objects: None,
    };
    let mut stop = signal(SignalKind::terminate())?;
    let stopped = async move {
        stop.recv().await;
    };
    driver(config)?
        .serve(&endpoint.ok_or("--endpoint is missing")?, ServeOptions::default(), stopped)
        .await?;
    Ok(())
}
