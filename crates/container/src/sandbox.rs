//! The kernel features that containers are built from: detached mounts (`DetachedMount`), paths that cannot leave a root
//! (`scoped_path`), namespaces, credentials, terminals, and process handles that survive reuse of process IDs. The calls
//! that need `unsafe` are in `wharf_linux::sandbox`.
//!
//! Nothing here makes decisions. Most functions change the calling process irreversibly, so they are for small
//! single-threaded helper processes, never for a server.

mod identity;
mod namespaces;
mod process;
pub(crate) mod scoped_path;
mod terminal;
mod tree;

pub(crate) use identity::Credentials;
pub(crate) use namespaces::{join, pivot_to_root, set_host_name};
pub(crate) use process::{
    ProcessHandle, boot_id, die_with_parent, disable_core_dumps, make_inheritable, new_session,
    raise_oom_score,
};
pub(crate) use terminal::{Terminal, set_controlling_terminal};
pub(crate) use tree::{DetachedMount, MountFlags};
pub(crate) use wharf_linux::sandbox::{
    Namespaces, close_inherited_on_exec, ignore_termination_signals, join_new_session_keyring,
    reset_signal_dispositions, run_after_fork, set_not_dumpable, take_inherited, unshare,
};
