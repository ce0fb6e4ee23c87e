//! The object to explain: `pvc/data`, `pod/db-0`, `pv/pvc-…`, `volumesnapshot/before`.

use std::fmt;
use std::str::FromStr;

use wharf_model::Key;

/// A kind that can be explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubjectKind {
    /// PersistentVolumeClaim.
    Claim,
    /// Pod.
    Pod,
    /// PersistentVolume.
    Volume,
    /// VolumeSnapshot.
    Snapshot,
}

/// The object to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The kind of the object.
    pub kind: SubjectKind,
    /// Its namespace; ignored for a volume.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Subject {
    /// The object's key in the API.
    pub fn key(&self) -> Key {
        match self.kind {
            SubjectKind::Volume => Key::cluster(&self.name),
            SubjectKind::Claim | SubjectKind::Pod | SubjectKind::Snapshot => {
                Key::namespaced(&self.namespace, &self.name)
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SubjectKind::Claim => "claim",
            SubjectKind::Pod => "pod",
            SubjectKind::Volume => "volume",
            SubjectKind::Snapshot => "snapshot",
        };
        write!(f, "{kind} {}", self.key())
    }
}

impl FromStr for Subject {
    type Err = String;

    /// Parses `kind/name`, with kubectl's resource names and short names. The namespace is `default` until the
    /// caller sets another.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not pvc/NAME, pod/NAME, pv/NAME or volumesnapshot/NAME");
        let (kind, name) = text.split_once('/').ok_or_else(invalid)?;
        let what = match kind.to_ascii_lowercase().as_str() {
            "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims" => SubjectKind::Claim,
            "po" | "pod" | "pods" => SubjectKind::Pod,
            "pv" | "persistentvolume" | "persistentvolumes" => SubjectKind::Volume,
            "vs" | "volumesnapshot" | "volumesnapshots" => SubjectKind::Snapshot,
            _ => return Err(invalid()),
        };
        match name.is_empty() || name.contains('/') {
            true => Err(invalid()),
            false => Ok(Self { kind: what, namespace: "default".to_owned(), name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_resource_names_are_parsed() {
        for (text, what) in [
            ("pvc/a", SubjectKind::Claim),
            ("PersistentVolumeClaim/a", SubjectKind::Claim),
            ("pod/a", SubjectKind::Pod),
            ("pv/a", SubjectKind::Volume),
            ("vs/a", SubjectKind::Snapshot),
        ] {
            assert_eq!(text.parse::<Subject>().map(|subject| subject.kind), Ok(what), "{text}");
        }
        for invalid in ["", "a", "pvc", "pvc/", "node/a", "pvc/a/b"] {
            assert!(invalid.parse::<Subject>().is_err(), "{invalid}");
        }
    }
}
