//! The init process of a container: sets up the container around itself, then executes its program.
//!
//! It is killed with its shim, from its first step on. Until it enters the container's root it runs nothing of the
//! container's, and from then on it executes the program and nothing else.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::record::{Order, Record};
use crate::report::{Failure, Step as _, cannot_execute};
use crate::root::{HostMounts, Root};
use crate::sandbox::{self, Credentials, Namespaces};
use crate::spec::ContainerSpec;
use crate::{capabilities, layout};

/// Default PATH.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Becomes the program of the container whose record is in `directory`. Returns only on failure, after reporting it
/// to the shim at the other end of `socket`.
pub(crate) fn run(directory: &Path, socket: RawFd) -> std::io::Result<()> {
    let mut shim = UnixStream::from(sandbox::take_inherited(socket)?);
    let Err(failure) = become_program(directory, &mut shim);
    shim.write_all(&serde_json::to_vec(&failure)?)
}

fn become_program(directory: &Path, shim: &mut UnixStream) -> Result<std::convert::Infallible, Failure> {
    sandbox::die_with_parent().step("parent death signal")?;
    sandbox::set_not_dumpable().step("own process")?;
    // If the shim was killed before the line above, the death signal never comes; but then the shim does not respond
    // here.
    shim.write_all(b"r").and_then(|()| shim.read_exact(&mut [0; 1])).step("shim")?;
    sandbox::new_session().step("session")?;
    sandbox::join_new_session_keyring().step("session keyring")?;
    let order = Record::at(directory).order().step("order")?;
    let order = order.ok_or_else(|| Failure::machine("order", "order.json is missing"))?;
    let spec = &order.spec;
    layout::check(spec).map_err(Failure::Config)?;
    let identity = identity(spec)?;
    // Like kubelet for BestEffort pods: no resources are reserved here. Agent and shim may have a lower OOM score; the
    // program must not inherit it.
    sandbox::raise_oom_score().step("OOM score")?;
    sandbox::disable_core_dumps().step("core dumps")?;
    enter(directory, &order)?;
    let working_dir =
        if spec.working_dir.as_os_str().is_empty() { Path::new("/") } else { &spec.working_dir };
    rustix::process::chdir(working_dir)
        .map_err(std::io::Error::from)
        .step(format_args!("working directory {}", working_dir.display()))?;
    identity.assume().step("user, groups and capabilities")?;
    // The death signal is cleared when the user changes: set it again, and check again whether the shim is gone.
    sandbox::die_with_parent().step("parent death signal")?;
    if hung_up(shim) {
        return Err(Failure::machine("shim", "the shim has exited"));
    }
    sandbox::close_inherited_on_exec().step("descriptors")?;
    sandbox::reset_signal_dispositions();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut command = command(&spec.command, &spec.env);
    let error = command.exec();
    Err(Failure::Program(cannot_execute(&spec.command[0], &error).1))
}

/// User, groups and capabilities of the container's processes.
pub(crate) fn identity(spec: &ContainerSpec) -> Result<Credentials, Failure> {
    let rights = &spec.rights;
    let capabilities = capabilities::resolve(rights.privileged, &rights.add, &rights.drop)
        .map_err(|error| Failure::Config(error.to_string()))?;
    let user = &spec.user;
    Ok(Credentials {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        capabilities,
        no_new_privileges: rights.no_new_privileges,
    })
}

/// A command with its complete environment. `words` is not empty.
pub(crate) fn command(words: &[String], env: &[(String, String)]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_clear().env("PATH", PATH);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command
}

/// Replaces the host's mounts by the container's own root.
fn enter(directory: &Path, order: &Order) -> Result<(), Failure> {
    let spec = &order.spec;
    // Open everything from the host first. This keeps the time short in which the new mount namespace holds a copy of
    // every host mount and so prevents the host from unmounting them.
    let host_mounts = HostMounts::open(order)?;
    sandbox::unshare(Namespaces::MountIpcUts).step("namespaces")?;
    let mut root = Root::create(directory, order.scratch_bytes, spec.rights.privileged)?;
    root.attach_all(&host_mounts, order)?;
    if !spec.hostname.is_empty() {
        sandbox::set_host_name(&spec.hostname).step("host name")?;
    }
    root.enter(spec.rights.read_only_root)
}

/// Whether the other end of the socket is closed.
fn hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_err() || !fds[0].revents().is_empty()
}
