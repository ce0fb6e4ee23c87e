//! The binary: roles as subcommands. Exit status 0 is done, 1 failed, 2 not understood.

mod cli;
mod csi;
mod driver;
mod local;
mod log;
mod output;
mod size;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    log::init(&cli.log, cli.default_log_level())?;
    // One thread: a driver mostly waits for the kernel, and stays small that way. What blocks goes to
    // tokio's blocking threads.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(cli.run())
}
