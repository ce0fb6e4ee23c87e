//! Flags that several commands share, and what they become on the wire.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use wharf_csi::v1;

use crate::size::parse_size;

/// How a volume is to be used.
#[derive(Debug, Clone, Args)]
pub(super) struct CapabilityArgs {
    /// As a raw block device, not as a file system
    #[arg(long, conflicts_with_all = ["fs_type", "mount_options"])]
    block: bool,
    /// File system to ask for, such as ext4, xfs or btrfs; left to the driver if not given
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true)]
    fs_type: String,
    /// Mount option, as after `mount -o`; may be repeated
    #[arg(long = "mount-option", value_name = "OPTION")]
    mount_options: Vec<String>,
    /// Who may use the volume, and how
    #[arg(long, value_enum, default_value = "single-node-writer", value_name = "MODE")]
    access_mode: AccessMode,
}

/// CSI's access modes, by their own names and by those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum AccessMode {
    /// One node reads and writes (ReadWriteOnce)
    #[value(alias = "rwo")]
    SingleNodeWriter,
    /// One node reads
    SingleNodeReaderOnly,
    /// Many nodes read (ReadOnlyMany)
    #[value(alias = "rox")]
    MultiNodeReaderOnly,
    /// Many nodes read, one of them writes
    MultiNodeSingleWriter,
    /// Many nodes read and write (ReadWriteMany)
    #[value(alias = "rwx")]
    MultiNodeMultiWriter,
    /// One pod on one node reads and writes (ReadWriteOncePod)
    #[value(alias = "rwop")]
    SingleNodeSingleWriter,
    /// Many pods on one node read and write
    SingleNodeMultiWriter,
}

impl CapabilityArgs {
    pub(super) fn message(&self) -> v1::VolumeCapability {
        use v1::volume_capability::{
            AccessMode as Wire, AccessType, BlockVolume, MountVolume, access_mode::Mode,
        };
        let mode = match self.access_mode {
            AccessMode::SingleNodeWriter => Mode::SingleNodeWriter,
            AccessMode::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
            AccessMode::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
            AccessMode::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
            AccessMode::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
            AccessMode::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
            AccessMode::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
        };
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: String::new(),
            })
        };
        v1::VolumeCapability { access_type: Some(access_type), access_mode: Some(Wire { mode: mode.into() }) }
    }
}

/// How large.
#[derive(Debug, Clone, Args)]
pub(super) struct SizeArgs {
    /// Size wanted at least, such as 10GiB, 500Mi or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<i64>,
    /// Size accepted at most
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit: Option<i64>,
}

impl SizeArgs {
    /// `None` if neither is given: CSI tells that apart from a range of zeroes.
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
    /// Ask for one page of at most so many entries, and show the token of the next; all pages if not given
    #[arg(long, value_name = "N")]
    pub(super) max_entries: Option<i32>,
    /// Begin where an earlier page ended, and show one page only
    #[arg(long, value_name = "TOKEN")]
    pub(super) starting_token: Option<String>,
}

impl PageArgs {
    /// Whether to go on after this page; a token that leads to itself would go on for ever.
    pub(super) fn next(&self, token: &str, next: &str) -> anyhow::Result<Option<String>> {
        if next.is_empty() || self.max_entries.is_some() || self.starting_token.is_some() {
            return Ok(None);
        }
        anyhow::ensure!(next != token, "the driver answers page {token:?} with itself as the next page");
        Ok(Some(next.to_owned()))
    }
}

/// `key=value` of a flag such as `--parameter`.
pub(super) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form key=value")),
    }
}

/// `key=value,key=value` of `--topology`: the segments of one place.
pub(super) fn topology(text: &str) -> Result<v1::Topology, String> {
    Ok(v1::Topology { segments: text.split(',').map(key_value).collect::<Result<_, _>>()? })
}

/// The map of a repeated `key=value` flag; the same key twice is a mistake, and which one counts a guess.
pub(super) fn map(pairs: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        anyhow::ensure!(map.insert(key.clone(), value.clone()).is_none(), "{key:?} is given twice");
    }
    Ok(map)
}

/// Secrets from a file with one JSON object of strings. They are not taken from flags, where every user of
/// the machine could read them; and what is wrong with the file is said without quoting it.
pub(super) fn read_secrets(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("read secrets file {}", path.display()))?;
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
    fn a_mount_by_one_node_unless_told_otherwise() {
        let capability = parse(&[]).unwrap().capability.message();
        let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not a mount") };
        assert_eq!((mount.fs_type.as_str(), mount.mount_flags.len()), ("", 0));
        assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeWriter);
    }

    #[test]
    fn block_and_access_modes() {
        let capability = parse(&["--block", "--access-mode", "rwop"]).unwrap().capability.message();
        assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
        assert_eq!(capability.access_mode.unwrap().mode(), Mode::SingleNodeSingleWriter);
        assert!(parse(&["--block", "--fs-type", "xfs"]).is_err(), "a raw device has no file system");
        assert!(parse(&["--access-mode", "all"]).is_err());
    }

    #[test]
    fn no_size_is_not_a_size_of_zero() {
        assert_eq!(parse(&[]).unwrap().size.message(), None);
        let range = |required_bytes, limit_bytes| Some(v1::CapacityRange { required_bytes, limit_bytes });
        assert_eq!(parse(&["--size", "1Ki"]).unwrap().size.message(), range(1024, 0));
        assert_eq!(parse(&["--size", "0", "--limit", "2Ki"]).unwrap().size.message(), range(0, 2048));
        assert!(parse(&["--size", "much"]).is_err());
    }

    #[test]
    fn pairs_of_key_and_value() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(key_value("a="), Ok(("a".into(), String::new())));
        assert!(key_value("a").is_err());
        assert!(key_value("=b").is_err());
        assert_eq!(topology("z=1,n=2").unwrap().segments.len(), 2);
        assert!(topology("z=1,").is_err());
        assert!(map(&[("a".into(), "1".into()), ("a".into(), "2".into())]).is_err());
    }

    #[test]
    fn one_page_only_where_one_page_is_asked_for() {
        let all = PageArgs { max_entries: None, starting_token: None };
        assert_eq!(all.next("", "t").unwrap(), Some("t".to_owned()));
        assert_eq!(all.next("t", "").unwrap(), None);
        assert!(all.next("t", "t").is_err());
        let one = PageArgs { max_entries: Some(3), starting_token: None };
        assert_eq!(one.next("", "t").unwrap(), None);
    }

    #[test]
    fn a_broken_secrets_file_is_not_quoted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"token": 12345}"#).unwrap();
        let said = format!("{:#}", read_secrets(file.path()).unwrap_err());
        assert!(said.contains("JSON object of strings") && !said.contains("12345"), "{said}");
        std::fs::write(file.path(), r#"{"token": "s3cret"}"#).unwrap();
        assert_eq!(read_secrets(file.path()).unwrap()["token"], "s3cret");
    }
}
