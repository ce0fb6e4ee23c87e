//! The first process of a container: makes the container around itself and becomes its program.
//!
//! It dies with its shim, from its first step on. Until it enters the container's root it runs nothing of the container's,
//! and from then on it executes the program and nothing else.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wharf_linux::sandbox::{self, Identity, Namespaces};

use super::record::{Order, Record};
use super::report::{Failure, Step as _, cannot_execute};
use super::root::{Kept, Root};
use super::spec::ContainerSpec;
use super::{capabilities, layout};

/// Where programs are looked for if the container does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Becomes the program of the container whose record is in `directory`. Comes back only if that did not work, after
/// telling the shim, which is at the other end of the socket with the number `socket`.
pub(super) fn run(directory: &Path, socket: RawFd) -> std::io::Result<()> {
    let mut shim = UnixStream::from(sandbox::inherited(socket)?);
    let Err(failure) = become_program(directory, &mut shim);
    shim.write_all(&serde_json::to_vec(&failure)?)
}

fn become_program(directory: &Path, shim: &mut UnixStream) -> Result<std::convert::Infallible, Failure> {
    sandbox::die_with_parent().step("death with the shim")?;
    sandbox::hide_from_debuggers().step("own process")?;
    // Had the shim died before the first line, nobody would kill us; but then it does not answer here.
    shim.write_all(b"r").and_then(|()| shim.read_exact(&mut [0; 1])).step("shim")?;
    sandbox::new_session().step("session")?;
    let order = Record::at(directory).order().step("order")?;
    let order = order.ok_or_else(|| Failure::machine("order", "there is none"))?;
    let spec = &order.spec;
    layout::check(spec).map_err(Failure::Config)?;
    let identity = identity(spec)?;
    // As kubelet does for pods that reserve nothing, and nothing is reserved here. The agent may be spared by its unit,
    // and so may the shim, which needs little; the program must not inherit that.
    sandbox::go_first_without_memory().step("memory score")?;
    enter(directory, &order)?;
    let working_dir =
        if spec.working_dir.as_os_str().is_empty() { Path::new("/") } else { &spec.working_dir };
    rustix::process::chdir(working_dir)
        .map_err(std::io::Error::from)
        .step(format_args!("working directory {}", working_dir.display()))?;
    identity.assume().step("user, groups and capabilities")?;
    // Another user has to say it again, and to look again whether it is too late.
    sandbox::die_with_parent().step("death with the shim")?;
    if hung_up(shim) {
        return Err(Failure::machine("shim", "it is gone"));
    }
    sandbox::forget_inherited().step("descriptors")?;
    sandbox::default_signals();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut command = command(&spec.command, &spec.env);
    let error = command.exec();
    Err(Failure::Program(cannot_execute(&spec.command[0], &error).1))
}

/// Who the container's processes are.
pub(super) fn identity(spec: &ContainerSpec) -> Result<Identity, Failure> {
    let rights = &spec.rights;
    let capabilities = capabilities::decide(rights.privileged, &rights.add, &rights.drop)
        .map_err(|error| Failure::Config(error.to_string()))?;
    let user = &spec.user;
    Ok(Identity {
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        capabilities,
        no_new_privileges: rights.no_new_privileges,
    })
}

/// A program with all of its environment. The command is not empty.
pub(super) fn command(words: &[String], env: &[(String, String)]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env_clear().env("PATH", PATH);
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command
}

/// Leaves the host for a root of the container's own.
fn enter(directory: &Path, order: &Order) -> Result<(), Failure> {
    let spec = &order.spec;
    // All that comes from the host is held on to first. Then the time is short in which this namespace has a copy of
    // every mount of the host, and so keeps the host from letting go of one.
    let kept = Kept::open(order)?;
    sandbox::unshare(Namespaces::Surroundings).step("namespaces")?;
    let mut root = Root::make(directory, order.scratch_bytes, spec.rights.privileged)?;
    root.furnish(&kept, order)?;
    if !spec.hostname.is_empty() {
        sandbox::set_host_name(&spec.hostname).step("host name")?;
    }
    root.enter(spec.rights.read_only_root)
}

/// Whether whoever is at the other end is gone.
fn hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    let ready = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    ready.is_err() || !fds[0].revents().is_empty()
}
