//! What is left when somebody is killed: the agent, or a shim.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wharf_linux::{Filesystems as _, FsType, Linux};
use wharf_node::runtime::{Cause, ContainerId, ContainerMount, LogOptions, Runtime, State};
use wharf_testkit::TestPool;

use crate::home::{Home, Mounted, command, eventually, runs, settings, sh, within};

const DIRECTORY: &str = "WHARF_TEST_AGENT_DIRECTORY";
const SCRIPT: &str = "WHARF_TEST_AGENT_SCRIPT";

/// Not a test by itself: what the others start as their agent. It starts a container and waits for its death.
#[tokio::test]
async fn agent() {
    let (Some(directory), Ok(script)) = (std::env::var_os(DIRECTORY), std::env::var(SCRIPT)) else { return };
    let runtime = Runtime::open(settings(Path::new(&directory))).unwrap();
    let id = runtime.start(sh("a", &script)).await.unwrap();
    println!("\nstarted {id}");
    std::future::pending::<()>().await;
}

/// Starts a container by an agent of its own, and kills the agent.
fn orphan(home: &Home, script: &str) -> ContainerId {
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::agent", "--nocapture"])
        .env(DIRECTORY, home.directory.path())
        .env(SCRIPT, script)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let id = lines.map_while(Result::ok).find_map(|line| ContainerId::parse(line.strip_prefix("started ")?));
    agent.kill().unwrap();
    agent.wait().unwrap();
    id.expect("the agent started a container")
}

#[tokio::test]
async fn a_container_goes_on_without_its_agent_and_is_found_again() {
    let home = Home::new();
    let id = orphan(&home, "while test ! -e /tmp/go; do sleep 0.05; done; echo went on; exit 6");
    let found = home.runtime.list().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, id);
    assert!(matches!(found[0].state, State::Running { pid, .. } if pid > 0), "{found:?}");
    let mut exec = home
        .runtime
        .exec(
            &id,
            wharf_node::runtime::ExecSpec {
                command: ["touch", "/tmp/go"].map(str::to_owned).to_vec(),
                ..Default::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(within(exec.wait()).await.unwrap(), 0);
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (6, Cause::Ended));
    assert_eq!(home.log(&id, LogOptions::default()).await, "went on\n");
    home.runtime.remove(&id).await.unwrap();
}

#[tokio::test]
async fn an_end_while_no_agent_was_there_is_known() {
    let home = Home::new();
    let id = orphan(&home, "sleep 0.3; exit 9");
    eventually("exit record", || home.record(&id).join("exit.json").exists());
    match home.runtime.state(&id) {
        State::Exited(exit) => assert_eq!((exit.code, exit.cause), (9, Cause::Ended)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_adopted_container_can_be_stopped() {
    let home = Home::new();
    let id = orphan(&home, "exec sleep 987621");
    let exit = within(home.runtime.stop(&id, Duration::from_millis(50))).await.unwrap();
    assert_eq!(exit.code, 137);
    assert!(!runs("987621"));
}

fn running(home: &Home, id: &ContainerId) -> Value {
    serde_json::from_slice(&fs::read(home.record(id).join("running.json")).unwrap()).unwrap()
}

fn kill(pid: &Value) {
    command("kill", &["-9", &pid.to_string()]);
}

/// Starts a container that is deaf to nothing once this answers.
async fn ready(home: &Home, script: &str) -> ContainerId {
    let id = home.runtime.start(sh("a", script)).await.unwrap();
    let mut logs =
        home.runtime.logs(&id, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"ready\n");
    id
}

/// An orderly end of the machine asks every process to end, shims too.
#[tokio::test]
async fn a_shim_that_is_asked_to_end_waits_for_its_container() {
    let home = Home::new();
    let script = "trap 'sleep 0.3; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let id = ready(&home, script).await;
    let record = running(&home, &id);
    let (shim, program) = (record["shim"]["pid"].to_string(), record["program"]["pid"].to_string());
    for signal in ["-TERM", "-INT", "-HUP"] {
        command("kill", &[signal, &shim]);
    }
    command("kill", &["-TERM", &program]);
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (7, Cause::Ended));
}

/// How a program ended is known as soon as there is room to write it down: a pod that succeeded must not have failed.
#[tokio::test]
async fn an_end_on_a_full_disk_is_known_later() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let _small = Mounted::tmpfs(place.path());
    command("mount", &["-o", "remount,size=1m", place.path().to_str().unwrap()]);
    let home = Home::with(|settings| settings.directory = place.path().join("containers"));
    let id = ready(&home, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").await;
    let program = format!("/proc/{}", home.pid(&id));
    fs::write(place.path().join("fill"), vec![0; 2 << 20]).unwrap_err();
    home.runtime.signal(&id, 15).unwrap();
    eventually("end", || !Path::new(&program).exists());
    let exited = tokio::time::timeout(Duration::from_millis(300), home.runtime.exited(&id));
    assert!(exited.await.is_err(), "nothing was noted");
    fs::remove_file(place.path().join("fill")).unwrap();
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (0, Cause::Ended));
}

#[tokio::test]
async fn a_container_dies_with_its_shim_and_that_is_known() {
    let home = Home::new();
    // A user of its own: becoming it takes away what was said about the shim's death, and it must be said again.
    let mut spec = sh("a", "setsid sleep 987631 & exec sleep 987632");
    spec.user.uid = 1000;
    let id = home.runtime.start(spec).await.unwrap();
    eventually("container", || runs("987631") && runs("987632"));
    kill(&running(&home, &id)["shim"]["pid"]);
    // Nobody asks for its state: it dies by itself.
    eventually("death", || !runs("987631") && !runs("987632"));
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal, exit.cause), (137, Some(9), Cause::Lost));
    assert_eq!(home.runtime.state(&id), State::Exited(exit), "and stays so");
    home.runtime.remove(&id).await.unwrap();
}

#[tokio::test]
async fn a_program_that_outlives_its_shim_is_killed_when_it_is_seen() {
    let home = Home::new();
    // It becomes another user by itself, so the kernel does not kill it.
    let id = home.runtime.start(sh("a", "exec setpriv --reuid 1000 sleep 987641")).await.unwrap();
    eventually("container", || runs("987641") && !runs("--reuid"));
    kill(&running(&home, &id)["shim"]["pid"]);
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!(exit.cause, Cause::Lost);
    assert!(!runs("987641"), "what has ended runs no more");
}

/// What the kernel says a process does: `D` is what no signal ends, `Z` that it has ended; `None`: it is gone.
fn doing(pid: &Value) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// In the middle of a write to a disk that hangs, nobody can be killed. Who asks for the state holds locks meanwhile.
#[tokio::test]
async fn a_program_that_cannot_die_holds_up_nobody() {
    let pool = TestPool::new(FsType::Ext4, 64 << 20);
    let home = Home::new();
    let mut spec = sh("a", "while :; do : > /data/file; done");
    let (source, target) = (pool.path().to_owned(), "/data".into());
    spec.mounts.push(ContainerMount { source, target, ..ContainerMount::default() });
    let id = home.runtime.start(spec).await.unwrap();
    let record = running(&home, &id);
    let (shim, program) = (&record["shim"]["pid"], &record["program"]["pid"]);
    let hangs = Linux::new().freeze(&[pool.path()], Duration::from_secs(60)).unwrap();
    eventually("write that hangs", || doing(program) == Some('D'));
    kill(shim);
    eventually("death of the shim", || matches!(doing(shim), None | Some('Z')));
    let asked = Instant::now();
    assert!(matches!(home.runtime.state(&id), State::Running { .. }), "it counts as running");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    let exited = tokio::time::timeout(Duration::from_millis(100), home.runtime.exited(&id));
    assert!(exited.await.is_err(), "it has not ended");
    hangs.thaw().unwrap();
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!(exit.cause, Cause::Lost);
    assert!(matches!(doing(program), None | Some('Z')), "what has ended runs no more");
}

#[tokio::test]
async fn a_number_that_now_is_another_process_is_left_alone() {
    let home = Home::new();
    let mut stranger = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    for (attempt, change) in ["start", "boot"].iter().enumerate() {
        let mut spec = sh("a", "exec sleep 1000");
        spec.attempt = u32::try_from(attempt).unwrap();
        let id = home.runtime.start(spec).await.unwrap();
        let mut record = running(&home, &id);
        kill(&record["shim"]["pid"]);
        let program = record["program"]["pid"].to_string();
        eventually("death", || !Path::new("/proc").join(&program).exists());
        record["program"]["pid"] = stranger.id().into();
        let stat = fs::read_to_string(format!("/proc/{}/stat", stranger.id())).unwrap();
        let start: u64 =
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        // A tick earlier: both may well have begun in the same one.
        record["program"]["start"] = (if *change == "start" { start - 1 } else { start }).into();
        if *change == "boot" {
            record["boot"] = "another".into();
        }
        fs::write(home.record(&id).join("running.json"), record.to_string()).unwrap();
        assert!(
            matches!(home.runtime.state(&id), State::Exited(exit) if exit.cause == Cause::Lost),
            "{change}"
        );
        assert!(stranger.try_wait().unwrap().is_none(), "{change}: the stranger lives");
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn a_start_that_was_broken_off_never_ran() {
    let home = Home::new();
    let spec = sh("a", "echo once");
    let id = home.runtime.start(spec.clone()).await.unwrap();
    within(home.runtime.exited(&id)).await.unwrap();
    // As it is when the agent died before the shim was there.
    for file in ["running.json", "exit.json"] {
        fs::remove_file(home.record(&id).join(file)).unwrap();
    }
    let found = home.runtime.list().unwrap();
    assert!(matches!(&found[0].state, State::Exited(exit) if exit.cause == Cause::NeverRan), "{found:?}");
    home.runtime.remove(&id).await.unwrap();

    // And before the order was written.
    fs::create_dir(home.record(&id)).unwrap();
    assert!(home.runtime.list().unwrap().is_empty());
    home.runtime.start(spec).await.unwrap();
    let mut log = String::new();
    within(home.runtime.exited(&id)).await.unwrap();
    let path = home.directory.path().join("logs/default_pod_11111111-2222-3333-4444-555555555555/a/0.log");
    fs::File::open(path).unwrap().read_to_string(&mut log).unwrap();
    assert!(log.ends_with("once\n") && log.lines().count() == 1, "{log}");
}

#[tokio::test]
async fn no_helper_stays_behind() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let shim = running(&home, &id)["shim"]["pid"].to_string();
    within(home.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    // Not even as a zombie: we are its parent.
    within(async {
        while Path::new("/proc").join(&shim).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// The power fails before records were on disk that need not be durable: they are there, and empty.
#[tokio::test]
async fn records_that_a_power_cut_has_torn() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let shim = running(&home, &id)["shim"]["pid"].clone();
    let whole = fs::read(home.record(&id).join("running.json")).unwrap();
    fs::write(home.record(&id).join("running.json"), b"").unwrap();
    assert!(matches!(home.runtime.state(&id), State::Running { .. }), "somebody holds the lock");
    fs::write(home.record(&id).join("running.json"), &whole).unwrap();
    kill(&shim);
    within(home.runtime.exited(&id)).await.unwrap();
    for torn in [&whole[..whole.len() / 2], b""] {
        fs::remove_file(home.record(&id).join("exit.json")).unwrap();
        fs::write(home.record(&id).join("running.json"), torn).unwrap();
        assert!(matches!(home.runtime.state(&id), State::Exited(_)), "nobody can be left");
    }
    fs::write(home.record(&id).join("order.json"), b"").unwrap();
    assert_eq!(home.runtime.list().unwrap(), []);
    assert!(!home.record(&id).exists(), "nobody could ask for it");
}

/// Who does not know of a container that runs would start a second one beside it, on the same volumes.
#[tokio::test]
async fn a_container_that_cannot_be_told_is_not_passed_over() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let (order, aside) = (home.record(&id).join("order.json"), home.directory.path().join("aside"));
    fs::rename(&order, &aside).unwrap();
    fs::create_dir(&order).unwrap();
    let error = home.runtime.list().unwrap_err();
    assert!(error.path.starts_with(home.record(&id)), "{error}");
    fs::remove_dir(&order).unwrap();
    // Torn, but somebody lives.
    fs::write(&order, b"").unwrap();
    home.runtime.list().unwrap_err();
    fs::rename(&aside, &order).unwrap();
    assert_eq!(home.runtime.list().unwrap().len(), 1);
}

/// The agent dies while it takes a container's files away: nobody could ask for the rest.
#[tokio::test]
async fn a_removal_that_was_broken_off_is_finished() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "true")).await.unwrap();
    within(home.runtime.exited(&id)).await.unwrap();
    fs::remove_file(home.record(&id).join("order.json")).unwrap();
    assert_eq!(home.runtime.list().unwrap(), []);
    assert!(!home.record(&id).exists());
}
