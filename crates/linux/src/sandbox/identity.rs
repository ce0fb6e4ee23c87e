//! Who a process is, and what it may do.

use std::io;

use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Who a process becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups, all of them.
    pub groups: Vec<u32>,
    /// Capabilities, a bit for each by its number. Root's programs have them; those of others may gain them, and no more.
    pub capabilities: u64,
    /// No program gains rights by being set-user-ID or having capabilities of its own.
    pub no_new_privileges: bool,
}

impl Identity {
    /// Becomes it, for good. The process must have one thread, or the others stay who they were.
    pub fn assume(&self) -> io::Result<()> {
        let wanted = CapabilitySet::from_bits_retain(self.capabilities);
        for bit in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << bit);
            match capability_is_in_bounding_set(capability) {
                Ok(true) if !wanted.contains(capability) => remove_capability_from_bounding_set(capability)?,
                Ok(_) => {}
                // The kernel knows no more of them.
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
        // Whoever is not root has lost all of them by now, as in every container.
        let have = if uid.is_root() {
            wanted & rustix::thread::capabilities(None)?.permitted
        } else {
            CapabilitySet::empty()
        };
        let sets = CapabilitySets { effective: have, permitted: have, inheritable: CapabilitySet::empty() };
        Ok(set_capabilities(None, sets)?)
    }
}
