//! Quotas in memory, and certificates, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use wharf_linux::{Project, ProjectQuotaState, ProjectUsage};

use super::{Quotas, TlsFiles};

/// Quotas by inode, counted as a file system would: a directory with a project is one inode.
pub(crate) struct FakeQuotas {
    pub(crate) state: Mutex<ProjectQuotaState>,
    /// The project of each directory, by inode.
    pub(crate) projects: Mutex<BTreeMap<u64, Project>>,
    pub(crate) limits: Mutex<BTreeMap<u32, u64>>,
}

impl FakeQuotas {
    pub(crate) fn new(state: ProjectQuotaState) -> Self {
        Self { state: Mutex::new(state), projects: Mutex::default(), limits: Mutex::default() }
    }

    /// The limit of a directory; 0 is none.
    pub(crate) fn limit_of(&self, directory: &Path) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        let inode = std::fs::metadata(directory).unwrap().ino();
        let project = self.projects.lock().unwrap().get(&inode).copied();
        project.map_or(0, |project| self.usage_of(project.id).limit)
    }

    fn usage_of(&self, id: u32) -> ProjectUsage {
        let inodes = self.projects.lock().unwrap().values().filter(|project| project.id == id).count() as u64;
        let limit = self.limits.lock().unwrap().get(&id).copied().unwrap_or(0);
        ProjectUsage { limit, used: 0, inodes }
    }
}

/// Searches as Linux does in the quota file of ext4, with the error that [`projects`](super::quota::projects) describes.
fn next_in_quota_file(known: &BTreeSet<u64>, id: &mut u64, level: u32) -> bool {
    let shift = 8 * (3 - level);
    let first = *id >> shift & 0xff;
    for _ in first..256 {
        let branch = *id >> shift << shift;
        if known.range(branch..branch + (1 << shift)).next().is_none() {
            *id += 1 << shift;
        } else if level == 3 || next_in_quota_file(known, id, level + 1) {
            return true;
        }
    }
    false
}

fn inode(file: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}

impl Quotas for FakeQuotas {
    fn state(&self, _: BorrowedFd<'_>) -> io::Result<ProjectQuotaState> {
        Ok(*self.state.lock().unwrap())
    }

    fn project(&self, directory: BorrowedFd<'_>) -> io::Result<Project> {
        let none = Project { id: 0, inherit: false };
        Ok(self.projects.lock().unwrap().get(&inode(directory)?).copied().unwrap_or(none))
    }

    fn set_project(&self, directory: BorrowedFd<'_>, id: u32) -> io::Result<()> {
        self.projects.lock().unwrap().insert(inode(directory)?, Project { id, inherit: true });
        Ok(())
    }

    fn usage(&self, _: BorrowedFd<'_>, id: u32) -> io::Result<ProjectUsage> {
        Ok(self.usage_of(id))
    }

    fn next(&self, _: BorrowedFd<'_>, from: u32) -> io::Result<Option<(u32, ProjectUsage)>> {
        let limits = self.limits.lock().unwrap().clone();
        let limited = limits.iter().filter(|(_, limit)| **limit > 0).map(|(id, _)| *id);
        let used: Vec<u32> = self.projects.lock().unwrap().values().map(|project| project.id).collect();
        let known: BTreeSet<u64> = limited.chain(used).map(u64::from).collect();
        let mut id = u64::from(from);
        Ok(next_in_quota_file(&known, &mut id, 0).then(|| (id as u32, self.usage_of(id as u32))))
    }

    fn set_limit(&self, _: BorrowedFd<'_>, id: u32, bytes: u64) -> io::Result<()> {
        // As xfs: full blocks of the file system.
        self.limits.lock().unwrap().insert(id, bytes.next_multiple_of(4096));
        Ok(())
    }
}

/// An authority with certificates for an agent at `localhost` and for a client.
pub(crate) struct Authority {
    dir: PathBuf,
    name: String,
}

impl Authority {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        use rcgen::{
            BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
        };

        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, key).unwrap();
        std::fs::write(dir.join(format!("{name}-ca.pem")), issuer.pem()).unwrap();
        for (role, usage) in
            [("agent", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
        {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.extended_key_usages = vec![usage];
            let certificate = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(dir.join(format!("{name}-{role}.pem")), certificate.pem()).unwrap();
            std::fs::write(dir.join(format!("{name}-{role}.key")), key.serialize_pem()).unwrap();
        }
        Self { dir: dir.to_owned(), name: name.to_owned() }
    }

    /// The files of a role (`agent` or `client`) that trusts another authority's certificates.
    pub(crate) fn files(&self, role: &str, trusts: &Self) -> TlsFiles {
        let file = |name: String| self.dir.join(name);
        TlsFiles {
            ca: file(format!("{}-ca.pem", trusts.name)),
            cert: file(format!("{}-{role}.pem", self.name)),
            key: file(format!("{}-{role}.key", self.name)),
        }
    }
}
