//! `wharf local …`: an operator's look at a pool, and the few things one may do to it by hand.
//!
//! Looking takes no lock and works while a driver runs. What changes something wants the pool for itself.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;
use wharf_driver::backend::{Format as Bytes, Source};
use wharf_driver_local::{Contents, Finding, Pool, Provisioning, Purged, Severity};
use wharf_linux::Linux;

use crate::output::{Format, Report, Table, or_dash};
use crate::size::human_size;

const EXPLANATION: &str = "\
`list`, `check` and `purge --dry-run` only look, and work while the driver runs. `purge` and `check --adopt`
change the pool, and want the driver stopped.";

/// Look at a local pool, and put it in order
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct LocalArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List volumes, snapshots and groups, and how full the pool is
    List {
        #[command(flatten)]
        pool: PoolArgs,
    },
    /// Report what does not add up, and the way out; exits with 1 if something cannot be used
    Check {
        #[command(flatten)]
        pool: PoolArgs,
        /// Take the image that this volume or snapshot has now for its own, after you made sure that it is: a
        /// pool that was restored from a backup has its images in new files; may be repeated
        #[arg(long, value_name = "ID")]
        adopt: Vec<String>,
    },
    /// Empty the trash at once, and undo what a crash left unfinished
    Purge {
        #[command(flatten)]
        pool: PoolArgs,
        /// Only show what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
struct PoolArgs {
    /// Directory of the pool
    #[arg(long, env = "WHARF_POOL", value_name = "DIR")]
    pool: PathBuf,
    /// How to print
    #[arg(long, short, value_enum, default_value = "table", value_name = "FORMAT")]
    output: Format,
}

/// Does it. Blocking calls are fine here: nothing else runs in this process.
pub(crate) fn run(args: LocalArgs) -> anyhow::Result<()> {
    let kernel = Arc::new(Linux::new());
    match args.command {
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

fn contents_report(contents: &Contents) -> anyhow::Result<Report> {
    let Contents { pool, volumes, snapshots, groups } = contents;
    let mut about = Table::new(&["POOL", "SIZE", "USED", "AVAILABLE", "PROMISED"]);
    about.row([
        pool.path.display().to_string(),
        size(pool.total_bytes),
        size(pool.used_bytes),
        size(pool.available_bytes),
        size(u64::try_from(pool.committed_bytes).unwrap_or(u64::MAX)),
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
                Some(Source::Snapshot(id) | Source::Volume(id)) => id.clone(),
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
                state(snapshot.state, snapshot.copied, snapshot.size),
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
    let mut table = Table::new(&["SEVERITY", "OBJECT", "PROBLEM", "WAY OUT"]);
    for Finding { severity, object, problem, way_out } in findings {
        let severity = match severity {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        table.row([severity.to_owned(), object.clone(), problem.clone(), way_out.clone()]);
    }
    let tables = if findings.is_empty() { sentence("everything adds up") } else { table };
    Report::list(json!({"findings": findings}), tables)
}

fn purged_report(purged: &[Purged], dry_run: bool) -> Report {
    let mut table = Table::new(&[if dry_run { "WOULD BE REMOVED" } else { "REMOVED" }]);
    for Purged { path } in purged {
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

/// What a volume's bytes are, in a word or two.
fn content(format: &Bytes) -> String {
    match format {
        Bytes::Blank => "blank".to_owned(),
        Bytes::Formatting { fs, .. } => format!("{fs}, being made"),
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
    fn a_copy_shows_how_far_it_is() {
        assert_eq!(state("ready", None, 100), "ready");
        assert_eq!(state("copying", Some(25), 100), "copying 25%");
        assert_eq!(state("copying", Some(u64::MAX / 2), u64::MAX), "copying 49%");
        assert_eq!(state("copying", Some(0), 0), "copying");
    }

    #[test]
    fn findings_in_both_forms() {
        let found = Finding {
            severity: Severity::Error,
            object: "vol-1".into(),
            problem: "its image is missing".into(),
            way_out: "put it back".into(),
        };
        let report = findings_report(&[found]);
        assert_eq!(
            report.render(Format::Table),
            "SEVERITY  OBJECT  PROBLEM               WAY OUT\nerror     vol-1   its image is missing  put it back\n"
        );
        let json: Value = serde_json::from_str(&report.render(Format::Json)).unwrap();
        assert_eq!(json["findings"][0]["wayOut"], "put it back");
        assert_eq!(findings_report(&[]).render(Format::Table), "everything adds up\n");
    }

    #[test]
    fn purge_says_whether_it_did_it() {
        let gone = [Purged { path: "trash/vol-1.0".into() }];
        assert_eq!(purged_report(&gone, true).render(Format::Table), "WOULD BE REMOVED\ntrash/vol-1.0\n");
        assert_eq!(purged_report(&gone, false).render(Format::Table), "REMOVED\ntrash/vol-1.0\n");
        assert_eq!(purged_report(&[], false).render(Format::Table), "nothing to remove\n");
    }
}
