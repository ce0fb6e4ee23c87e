//! User, groups and capabilities of a process.

use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// The credentials that a process takes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// User ID.
    pub(crate) uid: u32,
    /// Group ID.
    pub(crate) gid: u32,
    /// All supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// Bit mask of capabilities. Programs of root have them. Programs of other users can gain these, and no others.
    pub(crate) capabilities: u64,
    /// Programs gain no privileges from set-user-ID or file capabilities.
    pub(crate) no_new_privileges: bool,
}

impl Credentials {
    /// Irreversibly switches to these credentials. The process must be single-threaded: other threads would keep their
    /// old credentials.
    pub(crate) fn assume(&self) -> io::Result<()> {
        let wanted = CapabilitySet::from_bits_retain(self.capabilities);
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            match capability_is_in_bounding_set(capability) {
                Ok(true) if !wanted.contains(capability) => remove_capability_from_bounding_set(capability)?,
                Ok(_) => {}
                // The kernel has no more capabilities.
                Err(rustix::io::Errno::INVAL) => break,
                Err(error) => return Err(error.into()),
            }
        }
        clear_ambient_capability_set()?;
        let groups: Vec<Gid> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups)?;
        let gid = Gid::from_raw(self.gid);
        set_thread_res_gid(gid, gid, gid)?;
        if self.no_new_privileges {
            set_no_new_privs(true)?;
        }
        let uid = Uid::from_raw(self.uid);
        set_thread_res_uid(uid, uid, uid)?;
        // A non-root user has lost all capabilities at this point, as in every container.
        let have = if uid.is_root() {
            wanted & rustix::thread::capabilities(None)?.permitted
        } else {
            CapabilitySet::empty()
        };
        let sets = CapabilitySets { effective: have, permitted: have, inheritable: CapabilitySet::empty() };
        Ok(set_capabilities(None, sets)?)
    }
}
