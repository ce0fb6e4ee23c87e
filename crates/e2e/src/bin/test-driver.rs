//! The local driver on a kernel that crashes on demand: `test-driver SOCKET POOL TRACE`, other options by
//! environment variables (see `DriverOptions`). For tests only.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use wharf_driver::ServeOptions;
use wharf_driver_local::Config;
use wharf_linux::Linux;
use wharf_testkit::CrashKernel;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(socket), Some(pool), Some(trace)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: test-driver SOCKET POOL TRACE".into());
    };
    let crash_after = std::env::var("DIE_AFTER").ok().map(|n| n.parse()).transpose()?;
    let mut trace = File::options().create(true).append(true).open(trace)?;
    let mut kernel = CrashKernel::new(Arc::new(Linux::new()), crash_after, move |effect| {
        writeln!(trace, "{effect}").expect("writing the trace");
    });
    if std::env::var_os("SLOW_COPIES").is_some() {
        kernel = kernel.with_copy_pause(Duration::from_secs(30));
    }
    let attach = std::env::var_os("ATTACH").is_some();
    let config = Config { attach, create_pool: true, ..Config::new("node-1", pool) };
    let driver = wharf_driver_local::driver(Arc::new(kernel), config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let endpoint = format!("unix://{}", socket.display()).parse()?;
        driver
            .serve(&endpoint, ServeOptions::default(), async move {
                term.recv().await;
            })
            .await?;
        Ok(())
    })
}
