//! What a container is made of, in the kernel's terms: mounts that are not attached yet ([`Tree`]), paths that cannot
//! leave a root ([`inside`]), namespaces, an identity, a terminal, and processes that are surely who we think.
//!
//! Nothing here decides anything. Most of it changes the calling process for good, so it is for small helpers with one
//! thread, never for a server.

mod identity;
pub mod inside;
mod namespaces;
mod process;
mod terminal;
mod tree;

pub use identity::Identity;
pub use namespaces::{Namespaces, change_root, join, set_host_name, unshare};
pub use process::{
    Process, after_fork, boot_id, default_signals, die_with_parent, forget_inherited,
    go_first_without_memory, hide_from_debuggers, ignore_requests_to_end, inherited, new_session, to_inherit,
};
pub use terminal::{Terminal, make_controlling};
pub use tree::{MountFlags, Tree};
