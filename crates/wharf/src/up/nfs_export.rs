//! The `--nfs` flag: an export whose directories become volumes.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::external_driver::{ClassOptions, DriverOptions};

/// `server:/share`, as mount(8) writes it; an IPv6 address in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NfsExport {
    server: String,
    share: String,
}

impl NfsExport {
    /// Options of the NFS driver for this export: classes named `nfs` with the export as parameters.
    pub(super) fn driver_options(&self) -> DriverOptions {
        DriverOptions {
            fs_group_policy: Some("File".to_owned()),
            class: Some(ClassOptions { name: "nfs".to_owned(), parameters: self.parameters() }),
            ..DriverOptions::default()
        }
    }

    fn parameters(&self) -> BTreeMap<String, String> {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        BTreeMap::from([pair("server", &self.server), pair("share", &self.share)])
    }
}

impl FromStr for NfsExport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not an export: use SERVER:/SHARE, such as nas.example.com:/export");
        let (server, share) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(wrong)?,
            None => text.split_once(':').ok_or_else(wrong)?,
        };
        let brackets_match = server.parse::<std::net::Ipv6Addr>().is_ok() == text.starts_with('[');
        let valid = |part: &str| {
            !part.contains(['#', ',', '\\']) && !part.chars().any(|c| c.is_whitespace() || c.is_control())
        };
        let is_clean_path = share.starts_with('/') && share.split('/').all(|part| part != "..");
        match !server.is_empty()
            && !server.contains('/')
            && brackets_match
            && is_clean_path
            && valid(server)
            && valid(share)
        {
            true => Ok(Self { server: server.to_owned(), share: share.to_owned() }),
            false => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_parsed_as_mount_writes_them() {
        for (text, server, share) in [
            ("nas:/export", "nas", "/export"),
            ("10.0.0.1:/", "10.0.0.1", "/"),
            ("[fd00::1]:/a/b", "fd00::1", "/a/b"),
        ] {
            let export: NfsExport = text.parse().unwrap();
            let expected = [("server", server), ("share", share)].map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert_eq!(export.parameters(), BTreeMap::from(expected), "{text}");
        }
        for wrong in [
            "",
            "nas",
            "nas:export",
            ":/export",
            "fd00::1:/a",
            "[nas]:/a",
            "nas:/a/../b",
            "nas:/a#b",
            "nas:/a b",
            "a/b:/c",
        ] {
            assert!(wrong.parse::<NfsExport>().is_err(), "{wrong}");
        }
    }
}
