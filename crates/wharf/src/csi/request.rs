//! Flags that several commands share, and their conversion to CSI messages.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use wharf_csi::v1::volume_capability::MountVolume;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::{v1, volume_capability};

use crate::size::parse_size;

/// The volume capability of the request.
#[derive(Debug, Clone, Args)]
pub(super) struct CapabilityArgs {
    /// Use the volume as a raw block device instead of a file system
    #[arg(long, conflicts_with_all = ["fs_type", "mount_options"])]
    block: bool,
    /// File system, such as ext4, xfs or btrfs [default: the driver's choice]
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    fs_type: String,
    /// Mount option, as for `mount -o`; may be repeated
    #[arg(long = "mount-option", value_name = "OPTION")]
    mount_options: Vec<String>,
    /// Access mode of the volume
    #[arg(long, value_parser = access_mode_parser(), default_value = "single-node-writer", value_name = "MODE")]
    access_mode: Mode,
}

/// CSI's access modes with their names, the short names of Kubernetes as aliases, and help.
const ACCESS_MODES: [(Mode, &str, Option<&str>, &str); 7] = [
    (Mode::SingleNodeWriter, "single-node-writer", Some("rwo"), "One node reads and writes (ReadWriteOnce)"),
    (Mode::SingleNodeReaderOnly, "single-node-reader-only", None, "One node reads"),
    (Mode::MultiNodeReaderOnly, "multi-node-reader-only", Some("rox"), "Many nodes read (ReadOnlyMany)"),
    (Mode::MultiNodeSingleWriter, "multi-node-single-writer", None, "Many nodes read, one of them writes"),
    (
        Mode::MultiNodeMultiWriter,
        "multi-node-multi-writer",
        Some("rwx"),
        "Many nodes read and write (ReadWriteMany)",
    ),
    (
        Mode::SingleNodeSingleWriter,
        "single-node-single-writer",
        Some("rwop"),
        "One pod on one node reads and writes (ReadWriteOncePod)",
    ),
    (Mode::SingleNodeMultiWriter, "single-node-multi-writer", None, "Many pods on one node read and write"),
];

fn access_mode_parser() -> impl TypedValueParser<Value = Mode> {
    let value = |(_, name, alias, help)| PossibleValue::new(name).aliases(alias).help(help);
    PossibleValuesParser::new(ACCESS_MODES.map(value)).map(|text| {
        let named = |row: &&(Mode, &str, Option<&str>, &str)| row.1 == text || row.2 == Some(text.as_str());
        // Only names and aliases from the table are accepted.
        ACCESS_MODES.iter().find(named).map_or(Mode::Unknown, |row| row.0)
    })
}

impl CapabilityArgs {
    pub(super) fn message(&self) -> v1::VolumeCapability {
        let mount = MountVolume {
            fs_type: self.fs_type.clone(),
            mount_flags: self.mount_options.clone(),
            volume_mount_group: String::new(),
        };
        volume_capability(self.access_mode, (!self.block).then_some(mount))
    }
}

/// The capacity range of the request.
#[derive(Debug, Clone, Args)]
pub(super) struct SizeArgs {
    /// Minimum size (required_bytes), such as 10GiB, 500Mi or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<i64>,
    /// Maximum size (limit_bytes)
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<i64>,
}

impl SizeArgs {
    /// `None` if neither is given: in CSI, no range differs from a range of zeros.
    pub(super) fn message(&self) -> Option<v1::CapacityRange> {
        (self.size.is_some() || self.limit.is_some()).then(|| v1::CapacityRange {
            required_bytes: self.size.unwrap_or_default(),
            limit_bytes: self.limit.unwrap_or_default(),
        })
    }
}

/// One page of a listing, or all of them.
#[derive(Debug, Clone, Args)]
pub(super) struct PageArgs {
    /// Request one page of at most N entries, and print the token of the next page [default: all pages]
    #[arg(long, value_name = "N")]
    pub(super) max_entries: Option<i32>,
    /// Continue at the token of an earlier page, and request one page only
    #[arg(long, value_name = "TOKEN")]
    pub(super) starting_token: Option<String>,
}

impl PageArgs {
    /// The token of the next page to request, if any. A token that leads to itself would loop forever and is an error.
    pub(super) fn next(&self, token: &str, next: &str) -> anyhow::Result<Option<String>> {
        if next.is_empty() || self.max_entries.is_some() || self.starting_token.is_some() {
            return Ok(None);
        }
        anyhow::ensure!(next != token, "the driver returned page {token:?} as its own next page");
        Ok(Some(next.to_owned()))
    }
}

/// Parses `key=value` of a flag such as `--parameter`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form key=value")),
    }
}

/// Parses `key=value,key=value` of `--topology`: the segments of one topology.
pub(super) fn topology(text: &str) -> Result<v1::Topology, String> {
    Ok(v1::Topology { segments: text.split(',').map(key_value).collect::<Result<_, _>>()? })
}

/// The map of a repeated `key=value` flag. A duplicate key is an error: choosing one of the values would be a guess.
pub(super) fn map(pairs: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        anyhow::ensure!(map.insert(key.clone(), value.clone()).is_none(), "duplicate key {key:?}");
    }
    Ok(map)
}

/// Reads secrets from a file with one JSON object of strings. They are not accepted as flags, which every user of the
/// machine can read. Errors do not quote the file.
pub(super) fn read_secrets(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read secrets file {}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| {
        anyhow::anyhow!(
            "secrets file {} is not a JSON object of strings (line {}, column {})",
            path.display(),
            error.line(),
            error.column()
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use v1::volume_capability::{AccessType, access_mode::Mode};

    use super::*;

    #[derive(Parser)]
    struct Probe {
        #[command(flatten)]
        capability: CapabilityArgs,
        #[command(flatten)]
        size: SizeArgs,
    }

    fn parse(words: &[&str]) -> Result<Probe, clap::Error> {
        Probe::try_parse_from(std::iter::once(&"probe").chain(words))
    }

    #[test]
    fn capability_defaults_to_a_single_node_mount() {
        let capability = parse(&[]).unwrap().capability.message();
        let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not a mount") };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.len()), ("", 0));
        assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
    }

    #[test]
    fn block_and_access_modes_are_parsed() {
        let capability = parse(&["--block", "--access-mode", "rwop"]).unwrap().capability.message();
        assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
        assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeSingleWriter);
        assert!(parse(&["--block", "--fs-type", "xfs"]).is_err(), "a raw device has no file system");
        assert!(parse(&["--access-mode", "all"]).is_err());
    }

    #[test]
    fn missing_size_differs_from_zero() {
        assert_eq!(parse(&[]).unwrap().size.message(), None);
        let range = |required_bytes, limit_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes });
        assert_eq!(parse(&["--size", "1Ki"]).unwrap().size.message(), range(1024, 0));
        assert_eq!(parse(&["--size", "0", "--limit", "2Ki"]).unwrap().size.message(), range(0, 2048));
        assert!(parse(&["--size", "much"]).is_err());
    }

    #[test]
    fn key_value_pairs_are_parsed_or_refused() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(key_value("a="), Ok(("a".into(), String::new())));
        assert!(key_value("a").is_err());
        assert!(key_value("=b").is_err());
        assert_eq!(topology("z=1,n=2").unwrap().segments.len(), 2);
        assert!(topology("z=1,").is_err());
        assert!(map(&[("a".into(), "1".into()), ("a".into(), "2".into())]).is_err());
    }

    #[test]
    fn all_pages_are_requested_unless_limited() {
        let all = PageArgs { max_entries: None, starting_token: None };
        assert_eq!(all.next("", "t").unwrap(), Some("t".to_owned()));
        assert_eq!(all.next("t", "").unwrap(), None);
        assert!(all.next("t", "t").is_err());
        let one = PageArgs { max_entries: Some(3), starting_token: None };
        assert_eq!(one.next("", "t").unwrap(), None);
    }

    #[test]
    fn error_for_invalid_secrets_file_does_not_quote_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"token": 12345}"#).unwrap();
        let error = format!("{:#}", read_secrets(file.path()).unwrap_err());
        assert!(error.contains("JSON object of strings") && !error.contains("12345"), "{error}");
        std::fs::write(file.path(), r#"{"token": "s3cret"}"#).unwrap();
        assert_eq!(read_secrets(file.path()).unwrap()["token"], "s3cret");
    }
}
