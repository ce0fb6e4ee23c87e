//! What is asked about: `pvc/data`, `pod/db-0`, `pv/pvc-…`, `volumesnapshot/before`.

use std::fmt;
use std::str::FromStr;

use wharf_model::Key;

/// A kind that can be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// A claim.
    Claim,
    /// A pod.
    Pod,
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
}

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Its kind.
    pub what: What,
    /// Its namespace; of no use for a volume.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Subject {
    /// Where it is in the API.
    pub fn key(&self) -> Key {
        match self.what {
            What::Volume => Key::cluster(&self.name),
            What::Claim | What::Pod | What::Snapshot => Key::namespaced(&self.namespace, &self.name),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.what {
            What::Claim => "claim",
            What::Pod => "pod",
            What::Volume => "volume",
            What::Snapshot => "snapshot",
        };
        write!(f, "{kind} {}", self.key())
    }
}

impl FromStr for Subject {
    type Err = String;

    /// `kind/name`, with kubectl's names and short names of kinds; the namespace is `default` until somebody says
    /// another.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not pvc/NAME, pod/NAME, pv/NAME or volumesnapshot/NAME");
        let (kind, name) = text.split_once('/').ok_or_else(wrong)?;
        let what = match kind.to_ascii_lowercase().as_str() {
            "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims" => What::Claim,
            "po" | "pod" | "pods" => What::Pod,
            "pv" | "persistentvolume" | "persistentvolumes" => What::Volume,
            "vs" | "volumesnapshot" | "volumesnapshots" => What::Snapshot,
            _ => return Err(wrong()),
        };
        match name.is_empty() || name.contains('/') {
            true => Err(wrong()),
            false => Ok(Self { what, namespace: "default".to_owned(), name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_kubectls_names() {
        for (text, what) in [
            ("pvc/a", What::Claim),
            ("PersistentVolumeClaim/a", What::Claim),
            ("pod/a", What::Pod),
            ("pv/a", What::Volume),
            ("vs/a", What::Snapshot),
        ] {
            assert_eq!(text.parse::<Subject>().map(|subject| subject.what), Ok(what), "{text}");
        }
        for wrong in ["", "a", "pvc", "pvc/", "node/a", "pvc/a/b"] {
            assert!(wrong.parse::<Subject>().is_err(), "{wrong}");
        }
    }
}
