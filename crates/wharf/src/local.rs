//! `wharf local …`: creates, inspects and repairs a pool of the local driver.
//!
//! Read-only commands take no lock and work while the driver runs. Commands that change the pool need exclusive access.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;
use wharf_driver::backend::{FormatState as Bytes, VolumeContentSource};
use wharf_driver_local::disk::{self, Growth};
use wharf_driver_local::{Finding, OpenError, Pool, PoolContents, Provisioning, PurgedPath, Severity};
use wharf_linux::Linux;

use crate::output::{Format, Report, Table, or_dash};
use crate::size::{human_size, parse_size};

const AFTER_HELP: &str = "\
`list`, `check` and `purge --dry-run` only read the pool and work while the driver runs; `grow` works while the driver and \
pods run. `purge` and `check --adopt` change the pool: stop the driver first.";

/// How often `thaw --watch` checks.
const THAW_INTERVAL: Duration = Duration::from_secs(1);

/// Create, inspect and repair a pool of the local driver
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LocalArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a pool in an empty directory and print its identity; an existing pool stays as it is
    Init {
        #[command(flatten)]
        pool: PoolArgs,
    },
    /// List volumes, snapshots and groups, and the usage of the pool
    List {
        #[command(flatten)]
        pool: PoolArgs,
    },
    /// Report inconsistencies and how to fix them; exits with 1 if there is an error
    Check {
        #[command(flatten)]
        pool: PoolArgs,
        /// Accept the current image file of this volume or snapshot as its own, for example after the pool was restored
        /// from a backup and its images are new files. Verify the image first; may be repeated
        #[arg(long, value_name = "ID")]
        adopt: Vec<String>,
    },
    /// Thaw file systems that a driver froze for a snapshot before it was killed; does nothing while a driver runs
    Thaw {
        #[command(flatten)]
        pool: PoolArgs,
        /// Keep running, and check every second. For a second container next to a driver that is process 1 of its container:
        /// the kernel kills the driver's own thawing process together with the driver
        #[arg(long)]
        watch: bool,
    },
    /// Enlarge the pool while it is in use: its file, if it is in a file (as with `wharf up`), then its file system to
    /// the size of its device
    Grow {
        #[command(flatten)]
        pool: PoolArgs,
        /// New size of the file. Its blocks are allocated at once
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: Option<i64>,
    },
    /// Empty the trash now, and undo operations that a crash left unfinished
    Purge {
        #[command(flatten)]
        pool: PoolArgs,
        /// Show what would be removed, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
struct PoolArgs {
    /// Pool directory
    #[arg(long, env = "WHARF_POOL", value_name = "DIR")]
    pool: PathBuf,
    /// Output format
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

/// Runs the command. Blocking calls are fine: nothing else runs in this process.
pub(crate) fn run(args: LocalArgs) -> anyhow::Result<()> {
    let kernel = Arc::new(Linux::new());
    match args.command {
        Command::Init { pool: PoolArgs { pool, output } } => {
            let id = Pool::init(kernel, &pool)?;
            let text = sentence(&format!("{} is pool {id}", pool.display()));
            Report::list(json!({"pool": pool.display().to_string(), "poolId": id}), text).print(output)?;
        }
        Command::List { pool: PoolArgs { pool, output } } => {
            let contents = Pool::open_read_only(kernel, &pool)?.list().map_err(anyhow::Error::msg)?;
            contents_report(&contents)?.print(output)?;
        }
        Command::Check { pool: PoolArgs { pool, output }, adopt } => {
            if !adopt.is_empty() {
                let maintenance = Pool::open_maintenance(kernel.clone(), &pool)?;
                for id in &adopt {
                    maintenance.adopt(id).map_err(anyhow::Error::msg)?;
                }
            }
            let findings = Pool::open_read_only(kernel, &pool)?.check();
            findings_report(&findings).print(output)?;
            let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
            if errors > 0 {
                bail!("{errors} of {} findings are errors", findings.len());
            }
        }
        Command::Thaw { pool: PoolArgs { pool, output }, watch } => loop {
            match Pool::thaw_abandoned(kernel.clone(), &pool) {
                Ok(thawed) if !watch => {
                    let text = if thawed { "thawed" } else { "no abandoned freeze" };
                    Report::list(json!({"thawed": thawed}), sentence(text)).print(output)?;
                    break;
                }
                Ok(_) => {}
                // Not a pool: if its disk is mounted later, this process may not see it. Kubelet restarts the container.
                Err(error @ (OpenError::NoPool(_) | OpenError::Missing(_) | OpenError::NotADirectory(_))) => {
                    return Err(error.into());
                }
                Err(error) if !watch => return Err(error.into()),
                Err(error) => tracing::warn!(%error, "failed to check for an abandoned freeze"),
            }
            std::thread::sleep(THAW_INTERVAL);
        },
        Command::Grow { pool: PoolArgs { pool, output }, size } => {
            let grown = disk::grow_pool(&*kernel, &pool, size.map(i64::cast_unsigned))?;
            growth_report(&pool, grown)?.print(output)?;
        }
        Command::Purge { pool: PoolArgs { pool, output }, dry_run } => {
            let purged = if dry_run {
                Pool::open_read_only(kernel, &pool)?.purgeable().to_vec()
            } else {
                Pool::open_maintenance(kernel, &pool)?.purge().map_err(anyhow::Error::msg)?
            };
            purged_report(&purged, dry_run).print(output)?;
        }
    }
    Ok(())
}

fn contents_report(contents: &PoolContents) -> anyhow::Result<Report> {
    let PoolContents { pool, volumes, snapshots, groups } = contents;
    let mut about = Table::new(&[
        "POOL",
        "SIZE",
        "USED",
        "AVAILABLE",
        "ALLOCATED",
        "PROMISED",
        "OUTSTANDING",
        "RESERVED",
        "FREE BENEATH",
    ]);
    let large = |bytes: u128| size(u64::try_from(bytes).unwrap_or(u64::MAX));
    about.row([
        pool.path.display().to_string(),
        size(pool.total_bytes),
        size(pool.used_bytes),
        size(pool.available_bytes),
        size(pool.allocated_bytes),
        large(pool.promised_bytes),
        large(pool.outstanding_bytes),
        size(pool.reserved_for_records_bytes),
        or_dash(pool.free_beneath_bytes.map(size).unwrap_or_default()),
    ]);
    let mut table = Table::new(&[
        "VOLUME",
        "NAME",
        "SIZE",
        "ALLOCATED",
        "TYPE",
        "CONTENT",
        "STATE",
        "NODE",
        "SOURCE",
        "MOUNTED",
    ]);
    for volume in volumes {
        let mounts: Vec<String> = volume.mounts.iter().map(|path| path.display().to_string()).collect();
        table.row([
            volume.id.clone(),
            volume.name.clone(),
            size(volume.size),
            size(volume.allocated),
            match volume.provisioning {
                Provisioning::Thin => "thin".to_owned(),
                Provisioning::Thick => "thick".to_owned(),
            },
            content(&volume.format),
            state(volume.state, volume.copied, volume.size),
            or_dash(volume.node.clone().unwrap_or_default()),
            match &volume.source {
                Some(VolumeContentSource::Snapshot(id) | VolumeContentSource::Volume(id)) => id.clone(),
                None => "-".to_owned(),
            },
            or_dash(mounts.join(",")),
        ]);
    }
    let mut tables = vec![about, table];
    if !snapshots.is_empty() {
        let mut table =
            Table::new(&["SNAPSHOT", "NAME", "VOLUME", "SIZE", "ALLOCATED", "STATE", "CREATED", "GROUP"]);
        for snapshot in snapshots {
            table.row([
                snapshot.id.clone(),
                snapshot.name.clone(),
                snapshot.source.clone(),
                size(snapshot.size),
                size(snapshot.allocated),
                match snapshot.crash_consistent {
                    true => format!("{}, crash-consistent", snapshot.state),
                    false => state(snapshot.state, snapshot.copied, snapshot.size),
                },
                snapshot.created.clone(),
                or_dash(snapshot.group.clone().unwrap_or_default()),
            ]);
        }
        tables.push(table);
    }
    if !groups.is_empty() {
        let mut table = Table::new(&["GROUP", "NAME", "CREATED", "SNAPSHOTS"]);
        for group in groups {
            let snapshots = group.snapshots.join(",");
            table.row([group.id.clone(), group.name.clone(), group.created.clone(), snapshots]);
        }
        tables.push(table);
    }
    Ok(Report::lists(serde_json::to_value(contents)?, tables))
}

fn findings_report(findings: &[Finding]) -> Report {
    let mut table = Table::new(&["SEVERITY", "OBJECT", "PROBLEM", "REMEDY"]);
    for Finding { severity, object, problem, remedy } in findings {
        let severity = match severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        table.row([severity.to_owned(), object.clone(), problem.clone(), remedy.clone()]);
    }
    let tables = if findings.is_empty() { sentence("no problems found") } else { table };
    Report::list(json!({"findings": findings}), tables)
}

fn growth_report(pool: &Path, growth: Growth) -> anyhow::Result<Report> {
    let mut table = Table::new(&["POOL", "BEFORE", "SIZE"]);
    table.row([pool.display().to_string(), size(growth.before), size(growth.after)]);
    Ok(Report::list(serde_json::to_value(growth)?, table))
}

fn purged_report(purged: &[PurgedPath], dry_run: bool) -> Report {
    let mut table = Table::new(&[if dry_run { "WOULD BE REMOVED" } else { "REMOVED" }]);
    for PurgedPath { path } in purged {
        table.row([path.display().to_string()]);
    }
    let table = if purged.is_empty() { sentence("nothing to remove") } else { table };
    Report::list(json!({"dryRun": dry_run, "removed": purged}), table)
}

fn sentence(text: &str) -> Table {
    let mut table = Table::default();
    table.row([text.to_owned()]);
    table
}

/// A short description of a volume's content.
fn content(format: &Bytes) -> String {
    match format {
        Bytes::Blank => "blank".to_owned(),
        Bytes::Formatting { fs, .. } => format!("{fs}, formatting"),
        Bytes::Formatted { fs, .. } => fs.to_string(),
        Bytes::Copied { fs, .. } => format!("{fs}, fresh copy"),
        Bytes::Raw => "raw".to_owned(),
    }
}

fn state(name: &str, copied: Option<u64>, size: u64) -> String {
    match copied {
        Some(copied) if size > 0 => format!("{name} {}%", u128::from(copied) * 100 / u128::from(size)),
        _ => name.to_owned(),
    }
}

fn size(bytes: u64) -> String {
    human_size(i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn copying_state_shows_progress() {
        assert_eq!(state("ready", None, 100), "ready");
        assert_eq!(state("copying", Some(25), 100), "copying 25%");
        assert_eq!(state("copying", Some(u64::MAX / 2), u64::MAX), "copying 49%");
        assert_eq!(state("copying", Some(0), 0), "copying");
    }

    #[test]
    fn findings_are_rendered_as_table_and_json() {
        let found = Finding {
            severity: Severity::Error,
            object: "vol-1".into(),
            problem: "its image is missing".into(),
            remedy: "put it back".into(),
        };
        let report = findings_report(&[found]);
        assert_eq!(
            report.render(Format::Table),
            "SEVERITY  OBJECT  PROBLEM               REMEDY\nerror     vol-1   its image is missing  put it back\n"
        );
        let json: Value = serde_json::from_str(&report.render(Format::Json)).unwrap();
        assert_eq!(json["findings"][0]["remedy"], "put it back");
        assert_eq!(findings_report(&[]).render(Format::Table), "no problems found\n");
    }

    #[test]
    fn purge_report_distinguishes_dry_run() {
        let removed = [PurgedPath { path: "trash/vol-1.0".into() }];
        assert_eq!(purged_report(&removed, true).render(Format::Table), "WOULD BE REMOVED\ntrash/vol-1.0\n");
        assert_eq!(purged_report(&removed, false).render(Format::Table), "REMOVED\ntrash/vol-1.0\n");
        assert_eq!(purged_report(&[], false).render(Format::Table), "nothing to remove\n");
    }
}
