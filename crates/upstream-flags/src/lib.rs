//! The command lines of the upstream programs that the binary replaces. Each program has a file, with all its current and
//! removed flags and what they configure in Wharf. A test compares `docs/sidecar-flags.md` with these tables. Start reading
//! at [`Program::parse`].

mod attacher;
mod common;
mod environment;
mod gates;
mod goflags;
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

use goflags::{Flag, FlagError, ParseUntil, ParsedFlags, Support, ValueKind, parse};

pub use environment::Environment;
pub use goflags::parse_duration;
pub use liveness::HEALTH_PORT;
pub use logging::{LogFormat, LogOptions};

const CSI_ADDRESS: &str = "/run/csi/socket";

/// An upstream program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// external-provisioner.
    Provisioner,
    /// external-attacher.
    Attacher,
    /// external-resizer.
    Resizer,
    /// csi-snapshotter.
    Snapshotter,
    /// external-health-monitor.
    HealthMonitor,
    /// snapshot-controller.
    SnapshotController,
    /// external-snapshot-metadata.
    SnapshotMetadata,
    /// node-driver-registrar, and its predecessor driver-registrar.
    NodeDriverRegistrar,
    /// livenessprobe.
    LivenessProbe,
}

/// The result of parsing a command line.
pub enum Invocation {
    /// Print this text and exit.
    Print(String),
    /// Exit successfully: upstream's obsolete probe mode.
    Exit,
    /// Run this task.
    Run {
        /// The task.
        task: Task,
        /// Log filter and format.
        log: LogOptions,
        /// Flags and arguments that were ignored, to be logged.
        warnings: Vec<String>,
    },
}

/// A long-running task.
pub enum Task {
    /// Roles of the sidecar.
    Sidecar(Box<Sidecar>),
    /// The snapshot metadata service.
    SnapshotMetadata(Box<wharf_sidecar::snapshot_metadata::Config>),
    /// One of the modes of the legacy driver-registrar.
    LegacyRegistrar(legacy::Config),
}

const fn flag(name: &'static str, kind: ValueKind, default: &'static str, support: Support) -> Flag {
    Flag { name, kind, default, support }
}

const NO_GO_RUNTIME: Support = Support::Ignored("wharf has no Go runtime");
const REMOVED_UPSTREAM: Support = Support::Ignored("from older releases; no longer needed");
const RESYNC: Support = Support::Same(
    "every object is reconciled at this interval, shortened or extended by up to a fifth; 0 disables it; wharf's default is 10 minutes",
);

impl Program {
    /// The program that the binary was invoked as, by the file name in `argv0`.
    pub fn from_argv0(argv0: &OsStr) -> Option<Self> {
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

    /// Parses the program's command line.
    pub fn parse(self, args: &[String], environment: &Environment) -> Result<Invocation, String> {
        let flags: Vec<&'static Flag> = self.tables().into_iter().flatten().collect();
        let parse_invocation = || {
            let mut parsed = parse(&flags, self.parse_until(), args)?;
            if parsed.help {
                return Ok(Invocation::Print(self.help(&flags)));
            }
            if parsed.is_set("version") {
                return Ok(Invocation::Print(concat!("wharf ", env!("CARGO_PKG_VERSION"), "\n").to_owned()));
            }
            let log = logging::configure(&parsed, environment)?;
            let task = match self {
                Self::Provisioner => {
                    Task::Sidecar(Box::new(provisioner::configure(&mut parsed, environment)?))
                }
                Self::Attacher => Task::Sidecar(Box::new(attacher::configure(&mut parsed, environment)?)),
                Self::Resizer => Task::Sidecar(Box::new(resizer::configure(&mut parsed, environment)?)),
                Self::Snapshotter => {
                    Task::Sidecar(Box::new(snapshotter::configure(&mut parsed, environment)?))
                }
                Self::HealthMonitor => {
                    Task::Sidecar(Box::new(health_monitor::configure(&mut parsed, environment)?))
                }
                Self::SnapshotController => {
                    Task::Sidecar(Box::new(snapshot_controller::configure(&mut parsed, environment)?))
                }
                Self::SnapshotMetadata => {
                    Task::SnapshotMetadata(Box::new(snapshot_metadata::configure(&parsed, environment)?))
                }
                Self::NodeDriverRegistrar => match registrar::configure(&parsed, environment)? {
                    Some(task) => task,
                    None => return Ok(Invocation::Exit),
                },
                Self::LivenessProbe => Task::Sidecar(Box::new(liveness::configure(&parsed)?)),
            };
            Ok(Invocation::Run { task, log, warnings: parsed.warnings })
        };
        parse_invocation().map_err(|FlagError(error)| format!("{}: {error}", self.name()))
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

    /// The flags of the program, of all controllers, of controllers that call a driver, and of logging.
    fn tables(self) -> [&'static [Flag]; 4] {
        match self {
            Self::Provisioner => {
                [&provisioner::FLAGS, &common::CONTROLLER_FLAGS, &common::DRIVER_FLAGS, &logging::FLAGS]
            }
            Self::Attacher => {
                [&attacher::FLAGS, &common::CONTROLLER_FLAGS, &common::DRIVER_FLAGS, &logging::FLAGS]
            }
            Self::Resizer => {
                [&resizer::FLAGS, &common::CONTROLLER_FLAGS, &common::DRIVER_FLAGS, &logging::FLAGS]
            }
            Self::Snapshotter => {
                [&snapshotter::FLAGS, &common::CONTROLLER_FLAGS, &common::DRIVER_FLAGS, &logging::FLAGS]
            }
            Self::HealthMonitor => {
                [&health_monitor::FLAGS, &common::CONTROLLER_FLAGS, &common::DRIVER_FLAGS, &logging::FLAGS]
            }
            Self::SnapshotController => {
                [&snapshot_controller::FLAGS, &common::CONTROLLER_FLAGS, &[], &logging::FLAGS]
            }
            Self::SnapshotMetadata => [&snapshot_metadata::FLAGS, &[], &[], &logging::FLAGS],
            Self::NodeDriverRegistrar => [&registrar::FLAGS, &[], &[], &logging::FLAGS],
            Self::LivenessProbe => [&liveness::FLAGS, &[], &[], &logging::FLAGS],
        }
    }

    fn parse_until(self) -> ParseUntil {
        match self {
            // The only program that does not use Go's `flag` package.
            Self::Provisioner => ParseUntil::End,
            _ => ParseUntil::FirstPositional,
        }
    }

    fn help(self, flags: &[&Flag]) -> String {
        let mut text = format!("Flags of {}, as supported by wharf:\n", self.name());
        for flag in flags {
            let (kind, default) = (flag.kind.name(), flag.default);
            text.push_str(&format!("  -{} {kind} (default {default:?})\n", flag.name));
            match flag.support {
                Support::Same("") => {}
                Support::Same(note) => text.push_str(&format!("        {note}\n")),
                Support::Ignored(reason) => text.push_str(&format!("        ignored: {reason}\n")),
            }
        }
        text
    }
}

fn csi_endpoint(parsed: &ParsedFlags) -> Result<Endpoint, FlagError> {
    let address = parsed.text("csi-address").unwrap_or(CSI_ADDRESS);
    address.parse().map_err(|error| FlagError(format!("flag -csi-address: {error}")))
}

fn parse_address(name: &str, text: &str) -> Result<Address, FlagError> {
    text.parse().map_err(|error| FlagError(format!("flag -{name}: {error}")))
}

fn mutually_exclusive(name: &str) -> FlagError {
    FlagError(format!("only one of -{name} and -http-endpoint can be set"))
}

#[cfg(test)]
mod tests;
