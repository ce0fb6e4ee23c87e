//! Volume and snapshot handles, in every form that csi-driver-nfs has written.
//!
//! A handle tells where to look for a volume's record: on which server and share. It never tells what is deleted; the
//! record does. So parsing accepts any text, and [`VolumeHandle::location`] returns nothing for a handle that names no
//! safe place.

use std::fmt;

use crate::parameters::OnDelete;
use crate::path::{PathError, SharePath};

/// Separates the parts of a handle.
const SEPARATOR: char = '#';

/// The parts of a volume handle, as csi-driver-nfs reads them. Only [`Self::location`] has validated parts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeHandle {
    /// The server's name or address.
    pub server: String,
    /// The exported directory, without slashes at its ends.
    pub share: String,
    /// The volume's directory in the share, without slashes at its ends.
    pub sub_dir: String,
    /// The name of the CreateVolume request, if the class has a `subDir`; else empty.
    pub uuid: String,
    /// `retain` or `archive`, as the class spells it; else empty.
    pub on_delete: String,
}

/// Why a handle does not name a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// Not one of the forms: for example a static volume's handle, which can be any text.
    #[error("the handle does not have the form server#share#subDir#uuid#onDelete")]
    Form,
    /// The server's name is empty or has characters that no host name or address has.
    #[error("the server {0:?} is not a host name or address")]
    Server(String),
    /// The share has a component that is not allowed.
    #[error("the share is not allowed: {0}")]
    Share(PathError),
    /// The directory is empty or has a component that is not allowed.
    #[error("the directory is not allowed: {0}")]
    SubDir(PathError),
}

/// Where a volume or snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The server's name or address.
    pub server: String,
    /// The absolute path of the exported directory: `/` or `/a/b`.
    pub share: String,
    /// The directory in the share.
    pub path: SharePath,
    /// The name of the volume, or of the snapshot's source: also that of a dynamic PersistentVolume.
    pub volume: String,
}

impl VolumeHandle {
    /// Splits a handle into its parts, as csi-driver-nfs does. Parts are not validated.
    pub fn parse(handle: &str) -> Result<Self, HandleError> {
        let parts: Vec<&str> = handle.split(SEPARATOR).collect();
        let part = |index: usize| parts.get(index).copied().unwrap_or_default().to_owned();
        if parts.len() >= 3 {
            return Ok(Self {
                server: part(0),
                share: part(1),
                sub_dir: part(2),
                uuid: part(3),
                on_delete: part(4),
            });
        }
        // v3.0: server/share/subDir, where only the share has slashes.
        let (server, rest) = handle.split_once('/').ok_or(HandleError::Form)?;
        let (share, sub_dir) = rest.rsplit_once('/').ok_or(HandleError::Form)?;
        if server.is_empty() || sub_dir.is_empty() || share.contains('\n') {
            return Err(HandleError::Form);
        }
        Ok(Self {
            server: server.to_owned(),
            share: share.to_owned(),
            sub_dir: sub_dir.to_owned(),
            ..Self::default()
        })
    }

    /// Where the volume is; an error if a part is not safe to use.
    pub fn location(&self) -> Result<Location, HandleError> {
        let server = self.server.trim_matches('/');
        check_server(server)?;
        Ok(Location {
            server: server.to_owned(),
            share: absolute_share(&self.share).map_err(HandleError::Share)?,
            path: SharePath::new(&self.sub_dir).map_err(HandleError::SubDir)?,
            volume: self.name().to_owned(),
        })
    }

    /// The name of the CreateVolume request, as far as the handle has it.
    fn name(&self) -> &str {
        if self.uuid.is_empty() { &self.sub_dir } else { &self.uuid }
    }

    /// What DeleteVolume does, if the handle says it.
    pub fn on_delete(&self) -> Option<OnDelete> {
        OnDelete::parse(&self.on_delete).ok().flatten()
    }
}

impl fmt::Display for VolumeHandle {
    /// Exactly as csi-driver-nfs writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, share, sub_dir, uuid, on_delete } = self;
        let (server, share, sub_dir) =
            (server.trim_matches('/'), share.trim_matches('/'), sub_dir.trim_matches('/'));
        let on_delete = match self.on_delete() {
            Some(OnDelete::Retain | OnDelete::Archive) => on_delete,
            Some(OnDelete::Delete) | None => "",
        };
        write!(f, "{server}#{share}#{sub_dir}#{uuid}#{on_delete}")
    }
}

/// The parts of a snapshot handle: `server#share#NAME#NAME#SOURCE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotHandle {
    /// The server's name or address.
    pub server: String,
    /// The exported directory that holds the snapshot.
    pub share: String,
    /// The name of the CreateSnapshot request: also the snapshot's directory.
    pub name: String,
    /// The source volume's uuid, or its directory if it has none: also the archive's name.
    pub source: String,
}

impl SnapshotHandle {
    /// The handle of a new snapshot of a volume.
    pub fn new(server: &str, share: &str, name: &str, source: &VolumeHandle) -> Self {
        Self {
            server: server.trim_matches('/').to_owned(),
            share: share.trim_matches('/').to_owned(),
            name: name.to_owned(),
            source: source.name().to_owned(),
        }
    }

    /// Splits a handle into its parts: exactly five. Parts are not validated.
    pub fn parse(handle: &str) -> Result<Self, HandleError> {
        match handle.split(SEPARATOR).collect::<Vec<_>>()[..] {
            [server, share, name, _, source] => Ok(Self {
                server: server.to_owned(),
                share: share.to_owned(),
                name: name.to_owned(),
                source: source.to_owned(),
            }),
            _ => Err(HandleError::Form),
        }
    }

    /// Where the snapshot's directory is. An error if a part is not safe to use: the name must be one component, and the
    /// source a path.
    pub fn location(&self) -> Result<Location, HandleError> {
        let server = self.server.trim_matches('/');
        check_server(server)?;
        let path = SharePath::new(&self.name).map_err(HandleError::SubDir)?;
        if path.as_str() != self.name || !path.parents().is_empty() {
            let problem = "must be one component";
            return Err(HandleError::SubDir(PathError { path: self.name.clone(), problem }));
        }
        SharePath::new(&self.source).map_err(HandleError::SubDir)?;
        let share = absolute_share(&self.share).map_err(HandleError::Share)?;
        Ok(Location { server: server.to_owned(), share, path, volume: self.source.clone() })
    }
}

impl fmt::Display for SnapshotHandle {
    /// Exactly as csi-driver-nfs writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, share, name, source } = self;
        write!(f, "{}#{}#{name}#{name}#{source}", server.trim_matches('/'), share.trim_matches('/'))
    }
}

/// The absolute path of a share: `/` or `/a/b`. A share can be any path on the server, `.wharf` included.
pub fn absolute_share(share: &str) -> Result<String, PathError> {
    let trimmed = share.trim_matches('/');
    if trimmed.is_empty() {
        return Ok("/".to_owned());
    }
    let refused = |problem| Err(PathError { path: share.to_owned(), problem });
    for component in trimmed.split('/') {
        match component {
            "" => return refused("has an empty component"),
            "." | ".." => return refused("has a component \".\" or \"..\""),
            _ if component.contains([SEPARATOR, '\\']) => return refused("has a character # or \\"),
            _ if component.chars().any(char::is_control) => return refused("has a control character"),
            _ => {}
        }
    }
    Ok(format!("/{trimmed}"))
}

/// Accepts host names, IPv4 and IPv6 addresses (with or without brackets, with a scope). The kernel and other programs read
/// the server from `server:/share`, so it must not contain anything else.
pub fn check_server(server: &str) -> Result<(), HandleError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_:[]%".contains(c);
    let valid = server.len() <= 255 && !server.starts_with(['-', '.']) && !server.is_empty();
    match valid && server.chars().all(allowed) {
        true => Ok(()),
        false => Err(HandleError::Server(server.to_owned())),
    }
}

#[cfg(test)]
pub(crate) mod tests;
