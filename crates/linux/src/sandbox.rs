//! The kernel features that containers are built from: detached mounts (`DetachedMount`), paths that cannot leave a root
//! (`scoped_path`), namespaces, credentials, terminals, and process handles that survive reuse of process IDs.
//!
//! Nothing here makes decisions. Most functions change the calling process irreversibly, so they are for small
//! single-threaded helper processes, never for a server.

mod identity;
mod namespaces;
mod process;
pub mod scoped_path;
mod terminal;
mod tree;

pub use identity::Credentials;
pub use namespaces::{Namespaces, join, pivot_to_root, set_host_name, unshare};
pub use process::{
    ProcessHandle, boot_id, close_inherited_on_exec, die_with_parent, ignore_termination_signals,
    make_inheritable, new_session, raise_oom_score, reset_signal_dispositions, run_after_fork,
    set_not_dumpable, take_inherited,
};
pub use terminal::{Terminal, set_controlling_terminal};
pub use tree::{DetachedMount, MountFlags};
