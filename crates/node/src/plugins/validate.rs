//! Whether a plugin may be registered, by what it says of itself.

use std::cmp::Ordering;
use std::fmt;

use wharf_csi::registration::PluginInfo;
use wharf_model::names::is_dns_subdomain;

/// The only type of plugin that is for us; kubelet knows DevicePlugin and DRAPlugin besides.
pub(super) const CSI_PLUGIN: &str = "CSIPlugin";
/// By the CSI specification.
const LONGEST_NAME: usize = 63;

/// A version of the registration: numbers, the first of which decides.
#[derive(Debug, Clone)]
pub(super) struct Version(Vec<u64>);

/// Why a plugin is refused. The words are those that kubelet has for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// Not a CSI driver.
    #[error("no handler registered for plugin type: {0}; only {CSI_PLUGIN} is served on this node")]
    Type(String),
    /// Not a name.
    #[error(
        "{0:?} is not the name of a CSI driver: write a domain name of at most {LONGEST_NAME} characters"
    )]
    Name(String),
    /// No version at all.
    #[error("Plugin returned an empty list for supported versions")]
    NoVersions,
    /// None that is known here.
    #[error("None of the versions specified {0:?} are supported: one has to be 1.x")]
    Versions(Vec<String>),
    /// Somebody else has the name.
    #[error("Another driver with the same name is already registered with a higher supported version: {0:?}")]
    Taken(String),
}

impl Version {
    /// As upstream's `ParseGeneric`: a leading `v` and what follows the numbers does not count.
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

/// Checks what a plugin says of itself, whoever else is registered. Gives the highest version it has.
pub(super) fn validate(info: &PluginInfo) -> Result<Version, Invalid> {
    if info.r#type != CSI_PLUGIN {
        return Err(Invalid::Type(info.r#type.clone()));
    }
    // It becomes a part of paths, and the name of objects. Kubelet finds that out when it writes them.
    if info.name.len() > LONGEST_NAME || !is_dns_subdomain(&info.name.to_ascii_lowercase()) {
        return Err(Invalid::Name(info.name.chars().take(2 * LONGEST_NAME).collect()));
    }
    if info.supported_versions.is_empty() {
        return Err(Invalid::NoVersions);
    }
    // There is no CSI 2; what claims it need not be compatible with 1, and does not count.
    let known = info.supported_versions.iter().filter_map(|version| Version::parse(version));
    match known.filter(|version| version.major() <= 1).max() {
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
    fn versions() {
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
    fn types_and_names() {
        let long = "a".repeat(64);
        for (kind, name, fits) in [
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
            assert_eq!(validate(&info(kind, name, &["1.0.0"])).is_ok(), fits, "{kind} {name}");
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        let version = |text| Version::parse(text).unwrap();
        for (less, more) in [("1.2", "1.10"), ("1.9.9", "2.0"), ("1.0", "1.0.1")] {
            assert!(version(less) < version(more), "{less} {more}");
        }
        assert_eq!(version("1.0"), version("1.0.0"));
    }
}
