//! A CSI driver with scripted faults that reports callers which violate the CSI contract; see
//! `wharf_testkit::scripted`. For tests and benchmarks only.

use std::process::ExitCode;

use clap::Parser as _;
use wharf_testkit::scripted::{Options, serve};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scripted-driver: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::try_parse().unwrap_or_else(|error| error.exit());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options))
}
