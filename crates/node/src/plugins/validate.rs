//! Validates the info that a plugin reports before it is registered.

use std::cmp::Ordering;
use std::fmt;

use wharf_csi::registration::PluginInfo;
use wharf_model::names::is_dns_subdomain;

/// The only plugin type served here; kubelet also serves DevicePlugin and DRAPlugin.
pub(super) const CSI_PLUGIN: &str = "CSIPlugin";
/// From the CSI specification.
const LONGEST_NAME: usize = 63;

/// A registration API version: numbers, compared from the first.
#[derive(Debug, Clone)]
pub(super) struct Version(Vec<u64>);

/// Why a plugin is refused, in kubelet's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// Not a CSI driver.
    #[error("no handler registered for plugin type: {0}; only {CSI_PLUGIN} is served on this node")]
    Type(String),
    /// Not a valid driver name.
    #[error("{0:?} is not a valid CSI driver name: use a domain name of at most {LONGEST_NAME} characters")]
    Name(String),
    /// No version given.
    #[error("Plugin returned an empty list for supported versions")]
    NoVersions,
    /// No supported version.
    #[error("None of the versions specified {0:?} are supported: one has to be 1.x")]
    Versions(Vec<String>),
    /// The name is registered by another socket.
    #[error("Another driver with the same name is already registered with a higher supported version: {0:?}")]
    Taken(String),
}

impl Version {
    /// Like upstream's `ParseGeneric`: a leading `v` and anything after the numbers are ignored.
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let numbers: Option<Vec<u64>> = text[..end].split('.').map(|number| number.parse().ok()).collect();
        numbers.filter(|numbers| numbers.len() >= 2).map(Self)
    }

    fn major(&self) -> u64 {
        self.0.first().copied().unwrap_or_default()
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let longest = self.0.len().max(other.0.len());
        let number = |version: &Self, at: usize| version.0.get(at).copied().unwrap_or_default();
        (0..longest)
            .map(|at| number(self, at).cmp(&number(other, at)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Version {}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// Validates a plugin's info without regard to other registrations. Returns its highest supported version.
pub(super) fn validate(info: &PluginInfo) -> Result<Version, Invalid> {
    if info.r#type != CSI_PLUGIN {
        return Err(Invalid::Type(info.r#type.clone()));
    }
    // The name becomes part of paths and object names. Kubelet fails later, when it writes them.
    if info.name.len() > LONGEST_NAME || !is_dns_subdomain(&info.name.to_ascii_lowercase()) {
        return Err(Invalid::Name(info.name.chars().take(2 * LONGEST_NAME).collect()));
    }
    if info.supported_versions.is_empty() {
        return Err(Invalid::NoVersions);
    }
    // There is no CSI 2; a 2.x version need not be compatible with 1.x and is ignored.
    let supported = info.supported_versions.iter().filter_map(|version| Version::parse(version));
    match supported.filter(|version| version.major() <= 1).max() {
        Some(version) if version.major() == 1 => Ok(version),
        Some(_) | None => Err(Invalid::Versions(info.supported_versions.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(kind: &str, name: &str, versions: &[&str]) -> PluginInfo {
        PluginInfo {
            r#type: kind.into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: versions.iter().map(|&version| version.to_owned()).collect(),
        }
    }

    /// kubernetes.md 1.6 "Versions".
    #[test]
    fn highest_supported_version_is_selected() {
        let invalid = |versions: &[&str]| {
            Err(Invalid::Versions(versions.iter().map(|&version| version.to_owned()).collect()))
        };
        for (versions, expected) in [
            (&["1.0.0"][..], Ok("1.0.0")),
            (&["v1.0.0"], Ok("1.0.0")),
            (&["1.0"], Ok("1.0")),
            (&["1.0.0-beta.1"], Ok("1.0.0")),
            (&["1.2.0", "1.10.0", "1.9.0"], Ok("1.10.0")),
            (&["0.3.0", "1.0.0"], Ok("1.0.0")),
            (&["2.0.0", "1.1.0"], Ok("1.1.0")),
            (&["nonsense", "1.0.0"], Ok("1.0.0")),
            (&["0.3.0"], invalid(&["0.3.0"])),
            (&["2.0.0"], invalid(&["2.0.0"])),
            (&["2.0.0", "0.9.0"], invalid(&["2.0.0", "0.9.0"])),
            (&["1"], invalid(&["1"])),
            (&["1."], invalid(&["1."])),
            (&[""], invalid(&[""])),
            (&[], Err(Invalid::NoVersions)),
        ] {
            let found = validate(&info(CSI_PLUGIN, "a.example.com", versions));
            assert_eq!(found.map(|version| version.to_string()), expected.map(str::to_owned), "{versions:?}");
        }
    }

    /// kubernetes.md 1.6 "GetInfo".
    #[test]
    fn plugin_type_and_name_are_validated() {
        let long = "a".repeat(64);
        for (kind, name, valid) in [
            (CSI_PLUGIN, "hostpath.csi.k8s.io", true),
            (CSI_PLUGIN, "Local.CSI.example.com", true),
            (CSI_PLUGIN, &long[1..], true),
            (CSI_PLUGIN, &long, false),
            (CSI_PLUGIN, "", false),
            (CSI_PLUGIN, "../escape", false),
            (CSI_PLUGIN, "a_b", false),
            ("DevicePlugin", "a.example.com", false),
            ("DRAPlugin", "a.example.com", false),
            ("", "a.example.com", false),
        ] {
            assert_eq!(validate(&info(kind, name, &["1.0.0"])).is_ok(), valid, "{kind} {name}");
        }
        // Overlong names are truncated in the error.
        let truncated =
            validate(&info(CSI_PLUGIN, &"x".repeat(1000), &["1.0.0"])).map(|version| version.to_string());
        assert_eq!(truncated, Err(Invalid::Name("x".repeat(126))));
    }

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text| Version::parse(text).unwrap();
        for (less, more) in [("1.2", "1.10"), ("1.9.9", "2.0"), ("1.0", "1.0.1")] {
            assert!(version(less) < version(more), "{less} {more}");
        }
        assert_eq!(version("1.0"), version("1.0.0"));
        assert_ne!(version("1.0"), version("1.0.1"));
    }
}
