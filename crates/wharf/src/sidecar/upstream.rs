//! The upstream programs that the binary stands in for, with every flag they have or had, a file for each.
//! `docs/sidecar-flags.md` is made of the same tables.

mod attacher;
mod common;
mod gates;
mod health_monitor;
mod liveness;
mod logging;
mod provisioner;
mod registrar;
mod resizer;
mod snapshot_controller;
mod snapshot_metadata;
mod snapshotter;

use std::ffi::OsStr;
use std::path::Path;

use wharf_csi::Endpoint;
use wharf_sidecar::process::{Address, Sidecar};
use wharf_sidecar::registrar::legacy;

use super::Environment;
use super::goflags::{Becomes, Ends, Flag, FlagError, Given, Takes, parse};
use crate::cli::LogArgs;

pub(super) use liveness::HEALTH_PORT;

const CSI_ADDRESS: &str = "/run/csi/socket";

/// An upstream program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Provisioner,
    Attacher,
    Resizer,
    Snapshotter,
    HealthMonitor,
    SnapshotController,
    SnapshotMetadata,
    NodeDriverRegistrar,
    LivenessProbe,
}

/// What its command line asks for.
pub(crate) enum Asked {
    /// This text, and nothing else.
    Text(String),
    /// Nothing: it is an old probe that always succeeds.
    Nothing,
    /// To run.
    Run { work: Work, log: LogArgs, warnings: Vec<String> },
}

/// What to run.
pub(crate) enum Work {
    /// Roles of the sidecar.
    Sidecar(Box<Sidecar>),
    /// The snapshot metadata service.
    SnapshotMetadata(Box<wharf_sidecar::snapshot_metadata::Config>),
    /// One of the modes of the old driver-registrar.
    Legacy(legacy::Config),
}

const fn flag(name: &'static str, takes: Takes, default: &'static str, becomes: Becomes) -> Flag {
    Flag { name, takes, default, becomes }
}

const NO_GO: Becomes = Becomes::Ignored("there is no Go runtime here");
const REMOVED: Becomes = Becomes::Ignored("of older releases; nothing needs it any more");
const NO_THREADS: Becomes = Becomes::Ignored("work is not bound to threads here");
const NO_RESYNC: Becomes = Becomes::Ignored("watches bring every change, so nothing is looked through again");

impl Program {
    /// The program whose name the binary was called by.
    pub(crate) fn called(argv0: &OsStr) -> Option<Self> {
        match Path::new(argv0).file_name()?.to_str()? {
            "csi-provisioner" | "external-provisioner" => Some(Self::Provisioner),
            "csi-attacher" | "external-attacher" => Some(Self::Attacher),
            "csi-resizer" | "external-resizer" => Some(Self::Resizer),
            "csi-snapshotter" | "external-snapshotter" => Some(Self::Snapshotter),
            "csi-external-health-monitor-controller" => Some(Self::HealthMonitor),
            "snapshot-controller" => Some(Self::SnapshotController),
            "csi-snapshot-metadata" => Some(Self::SnapshotMetadata),
            "csi-node-driver-registrar" | "node-driver-registrar" | "driver-registrar" => {
                Some(Self::NodeDriverRegistrar)
            }
            "livenessprobe" => Some(Self::LivenessProbe),
            _ => None,
        }
    }

    /// What its command line asks for; `Err` says what is not understood.
    pub(crate) fn asked(self, words: &[String], environment: &Environment) -> Result<Asked, String> {
        let flags: Vec<&'static Flag> = self.tables().into_iter().flatten().collect();
        let read = || {
            let mut given = parse(&flags, self.ends(), words)?;
            if given.help {
                return Ok(Asked::Text(self.help(&flags)));
            }
            if given.is_set("version") {
                return Ok(Asked::Text(concat!("wharf ", env!("CARGO_PKG_VERSION"), "\n").to_owned()));
            }
            let log = logging::asked(&given, environment)?;
            let work = match self {
                Self::Provisioner => Work::Sidecar(Box::new(provisioner::asked(&mut given, environment)?)),
                Self::Attacher => Work::Sidecar(Box::new(attacher::asked(&mut given, environment)?)),
                Self::Resizer => Work::Sidecar(Box::new(resizer::asked(&mut given, environment)?)),
                Self::Snapshotter => Work::Sidecar(Box::new(snapshotter::asked(&mut given, environment)?)),
                Self::HealthMonitor => {
                    Work::Sidecar(Box::new(health_monitor::asked(&mut given, environment)?))
                }
                Self::SnapshotController => {
                    Work::Sidecar(Box::new(snapshot_controller::asked(&mut given, environment)?))
                }
                Self::SnapshotMetadata => {
                    Work::SnapshotMetadata(Box::new(snapshot_metadata::asked(&given, environment)?))
                }
                Self::NodeDriverRegistrar => match registrar::asked(&given, environment)? {
                    Some(work) => work,
                    None => return Ok(Asked::Nothing),
                },
                Self::LivenessProbe => Work::Sidecar(Box::new(liveness::asked(&given)?)),
            };
            Ok(Asked::Run { work, log, warnings: given.warnings })
        };
        read().map_err(|FlagError(error)| format!("{}: {error}", self.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "csi-provisioner",
            Self::Attacher => "csi-attacher",
            Self::Resizer => "csi-resizer",
            Self::Snapshotter => "csi-snapshotter",
            Self::HealthMonitor => "csi-external-health-monitor-controller",
            Self::SnapshotController => "snapshot-controller",
            Self::SnapshotMetadata => "csi-snapshot-metadata",
            Self::NodeDriverRegistrar => "csi-node-driver-registrar",
            Self::LivenessProbe => "livenessprobe",
        }
    }

    /// Its flags: its own, those it shares with others of its kind, those of its log.
    fn tables(self) -> [&'static [Flag]; 3] {
        match self {
            Self::Provisioner => [&provisioner::FLAGS, &common::FLAGS, &logging::FLAGS],
            Self::Attacher => [&attacher::FLAGS, &common::FLAGS, &logging::FLAGS],
            Self::Resizer => [&resizer::FLAGS, &common::FLAGS, &logging::FLAGS],
            Self::Snapshotter => [&snapshotter::FLAGS, &common::FLAGS, &logging::FLAGS],
            Self::HealthMonitor => [&health_monitor::FLAGS, &common::FLAGS, &logging::FLAGS],
            Self::SnapshotController => [&snapshot_controller::FLAGS, &[], &logging::FLAGS],
            Self::SnapshotMetadata => [&snapshot_metadata::FLAGS, &[], &logging::FLAGS],
            Self::NodeDriverRegistrar => [&registrar::FLAGS, &[], &logging::FLAGS],
            Self::LivenessProbe => [&liveness::FLAGS, &[], &logging::FLAGS],
        }
    }

    fn ends(self) -> Ends {
        match self {
            // The only one that does not use Go's own package.
            Self::Provisioner => Ends::Never,
            _ => Ends::AtFirstWord,
        }
    }

    fn help(self, flags: &[&Flag]) -> String {
        let mut text = format!("Flags of {}, as wharf takes them:\n", self.name());
        for flag in flags {
            let (takes, default) = (flag.takes.name(), flag.default);
            text.push_str(&format!("  -{} {takes} (default {default:?})\n", flag.name));
            match flag.becomes {
                Becomes::Same("") => {}
                Becomes::Same(note) => text.push_str(&format!("        {note}\n")),
                Becomes::Ignored(reason) => text.push_str(&format!("        ignored: {reason}\n")),
            }
        }
        text
    }
}

fn driver(given: &Given) -> Result<Endpoint, FlagError> {
    let address = given.text("csi-address").unwrap_or(CSI_ADDRESS);
    address.parse().map_err(|error| FlagError(format!("flag -csi-address: {error}")))
}

fn to_address(name: &str, text: &str) -> Result<Address, FlagError> {
    text.parse().map_err(|error| FlagError(format!("flag -{name}: {error}")))
}

fn only_one(name: &str) -> FlagError {
    FlagError(format!("only one of -{name} and -http-endpoint can be set"))
}

#[cfg(test)]
mod tests;
