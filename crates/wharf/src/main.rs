//! The `wharf` binary: one subcommand per role. Called under the name of an upstream sidecar, it parses that program's
//! flags and does its work.
//!
//! Exit status: 0 success, 1 failure, 2 invalid command line. `wharf explain` defines more. Start reading at `cli`.

mod agent;
mod apiserver;
mod backup;
mod cli;
mod controllers;
mod csi;
mod down;
mod driver;
mod explain;
mod install;
mod local;
mod log;
mod nfs;
mod nfs_server;
mod output;
mod sidecar;
mod signal;
mod size;
mod snapshot_metadata;
mod status_pages;
mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use wharf_upstream_flags::{Environment, Invocation, Program};

use crate::cli::{Cli, LogArgs};

/// Ends the process with this status and without an error message: the command has already printed its result.
#[derive(Debug, thiserror::Error)]
#[error("exit status {0}")]
pub(crate) struct ExitStatus(pub(crate) u8);

fn main() -> ExitCode {
    // Containers are started through this binary. The helper must run before any thread exists.
    if let Some(code) = wharf_container::run_helper(std::env::args_os()) {
        return code;
    }
    // Likewise the worker processes of the NFS driver.
    if let Some(code) = wharf_driver_nfs::worker::main(std::env::args_os()) {
        return code;
    }
    match std::env::args_os().next().and_then(|argv0| Program::from_argv0(&argv0)) {
        Some(program) => run_as_upstream(program),
        None => {
            let cli = Cli::parse();
            let (log, level) = (cli.log.clone(), cli.default_log_level());
            run(&log, level, || cli.run())
        }
    }
}

// A panic in one request or one reconcile must not end the process, which needs unwinding in every profile.
const _: () =
    assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\": see crates/model/src/panics.rs");

/// Runs as a drop-in replacement of an upstream sidecar.
fn run_as_upstream(program: Program) -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    match program.parse(&args, &Environment::read()) {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Ok(Invocation::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Invocation::Exit) => ExitCode::SUCCESS,
        Ok(Invocation::Run { task, log, warnings }) => run(&log.into(), "info", || async {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            sidecar::run_task(task).await
        }),
    }
}

/// Initialises logging, then creates and runs the future. It is created inside, so that it can log from the start.
fn run<F: Future<Output = anyhow::Result<()>>>(
    log: &LogArgs,
    level: &str,
    work: impl FnOnce() -> F,
) -> ExitCode {
    let run = || {
        log::init(log, level)?;
        // One thread: a driver mostly waits for the kernel, and one thread keeps its memory small. Blocking calls run
        // on tokio's blocking threads.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start the runtime")?;
        runtime.block_on(async { work().await })
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<ExitStatus>() {
            Some(ExitStatus(status)) => ExitCode::from(*status),
            None => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
