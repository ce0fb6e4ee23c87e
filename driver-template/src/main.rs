//! A CSI driver. `directories.rs` is the storage; this file reads the flags and serves it.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use driver_template::Directories;
use tokio::signal::unix::{SignalKind, signal};
use wharf_driver::{Endpoint, ServeOptions};

const USAGE: &str = "usage: driver-template --endpoint unix:///PATH --node-id NAME --root DIRECTORY";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // `RUST_LOG=debug` shows every call.
    let filter = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: HashMap<&str, &str> =
        arguments.chunks_exact(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let flag = |name| flags.get(name).copied().ok_or(USAGE);
    let endpoint: Endpoint = flag("--endpoint")?.parse()?;
    let storage = Arc::new(Directories::open(flag("--root")?)?);

    let driver = driver_template::driver(storage, flag("--node-id")?)?;
    // Kubernetes stops a container with SIGTERM, and Ctrl-C sends SIGINT.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stopped = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    driver.serve(&endpoint, ServeOptions::default(), stopped).await?;
    Ok(())
}
