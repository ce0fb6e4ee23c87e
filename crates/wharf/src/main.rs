//! The binary: roles as subcommands, or the upstream sidecar by whose name it is called. Exit status 0 is
//! done, 1 failed, 2 not understood; `wharf explain` has more of its own.

mod agent;
mod apiserver;
mod backup;
mod cli;
mod controllers;
mod csi;
mod down;
mod driver;
mod explain;
mod fake;
mod install;
mod local;
mod log;
mod output;
mod pages;
mod sidecar;
mod signal;
mod size;
mod snapshot_metadata;
mod up;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use crate::cli::{Cli, LogArgs};
use crate::sidecar::{Asked, Environment, Program};

/// A command that has said all it had to say, and ends with this status.
#[derive(Debug, thiserror::Error)]
#[error("exit status {0}")]
pub(crate) struct ExitStatus(pub(crate) u8);

fn main() -> ExitCode {
    // Containers are started through this program: before there is any thread.
    if let Some(code) = wharf_node::runtime::helper(std::env::args_os()) {
        return code;
    }
    match std::env::args_os().next().and_then(|argv0| Program::called(&argv0)) {
        Some(program) => stand_in(program),
        None => {
            let cli = Cli::parse();
            let (log, level) = (cli.log.clone(), cli.default_log_level());
            run(&log, level, || cli.run())
        }
    }
}

/// Does the work of an upstream sidecar.
fn stand_in(program: Program) -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match program.asked(&words, &Environment::read()) {
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
        Ok(Asked::Text(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Asked::Nothing) => ExitCode::SUCCESS,
        Ok(Asked::Run { work, log, warnings }) => run(&log, "info", || async {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            sidecar::work(work).await
        }),
    }
}

/// Runs `work` to its end. It is made within: only there is a log.
fn run<F: Future<Output = anyhow::Result<()>>>(
    log: &LogArgs,
    level: &str,
    work: impl FnOnce() -> F,
) -> ExitCode {
    let run = || {
        log::init(log, level)?;
        // One thread: a driver mostly waits for the kernel, and stays small that way. What blocks goes to
        // tokio's blocking threads.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start the runtime")?;
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
