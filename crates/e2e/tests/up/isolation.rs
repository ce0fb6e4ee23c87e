//! What a pod that is root in its container cannot do to the machine, to `wharf up` and to other pods.

use std::os::unix::net::UnixListener;

use serde_json::json;

use crate::machine::Machine;
use crate::objects::{KEEPER, claim, pod};

/// Each output line is a breach of isolation. `$DATA` is the data directory, `$HERE` a host directory next to it,
/// `$PORT` the API's port.
const INTRUDER: &str = r#"
say() { echo "LEAK $*"; }
# The host's own files.
echo intruder > /etc/wharf-intruder; echo intruder >> /etc/passwd
# What wharf up keeps: credentials, keys, objects, sockets, other pods' volumes.
test -z "$(ls -A "$DATA" 2>/dev/null)" || say "the data directory has $(ls -A "$DATA")"
for file in kubeconfig api run/local.sock run/pid pool.img pool kubelet containers logs; do
  test ! -e "$DATA/$file" || say "$file is visible"
done
cat "$DATA/kubeconfig" >/dev/null 2>&1 && say "credentials are read"
umount "$DATA" 2>/dev/null && say "what hides the data directory is unmounted"
# The other pod's volume, by any path and by what is mounted.
grep -rqs "of-the-other" /data /mnt /run /tmp /var/lib/kubelet 2>/dev/null && say "the other's data is found"
awk '{ print $5 }' /proc/self/mountinfo | grep -E "globalmount|kubernetes.io~|/pool" && say "mounts of others"
# Processes of the host, and the host's root through them.
for pid in /proc/[0-9]*; do
  name=$(cat "$pid/comm" 2>/dev/null)
  case $name in wharf*|systemd|init) say "process $name" ;; esac
  test ! -e "$pid/root$DATA/kubeconfig" || say "the host's root is reached by $pid"
done
# Devices: of volumes, of the pool, of the machine.
for device in /dev/loop* /dev/vd* /dev/sd* /dev/nvme* /dev/mem /dev/kmsg; do test ! -e "$device" || say "$device is visible"; done
for minor in 0 1 2 3 4 5 6 7; do
  for place in /dev /tmp /data; do
    mknod "$place/disk" b 7 $minor 2>/dev/null && head -c 1 "$place/disk" >/dev/null 2>&1 && say "loop device $minor is read"
    rm -f "$place/disk"
  done
done
# New mounts, modules, the clock, other namespaces.
mount -t tmpfs none /mnt 2>/dev/null && say "something is mounted"
mount --bind / /mnt 2>/dev/null && say "something is bound"
unshare --mount true 2>/dev/null && say "a mount namespace is created"
nsenter --target 1 --mount true 2>/dev/null && [ "$(readlink /proc/1/ns/mnt)" != "$(readlink /proc/self/ns/mnt)" ] && say "another mount namespace"
chroot /proc/1/root true 2>/dev/null && test -e /proc/1/root"$DATA"/kubeconfig && say "chroot to the host"
(echo 1 > /proc/sys/kernel/sysrq) 2>/dev/null && say "sysctl is written"
(echo /data/x > /proc/sys/kernel/core_pattern) 2>/dev/null && say "core_pattern is written"
find /sys -maxdepth 3 -name release_agent -writable 2>/dev/null | grep . && say "release_agent is writable"
(echo 1 > /sys/block/loop0/loop/autoclear) 2>/dev/null && say "/sys is written"
# Sockets of the host by its files; the API without credentials.
perl -e 'use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 1; exit !connect($s, sockaddr_un($ARGV[0]))' "$HERE/socket" \
  && say "a socket of the host is reached"
for path in /api/v1/secrets /api/v1/namespaces/default/pods; do
  code=$(curl -sk -o /dev/null -w '%{http_code}' "https://127.0.0.1:$PORT$path" 2>/dev/null)
  case $code in 401|403) ;; *) say "the API responds $code without credentials" ;; esac
done
token=/var/run/secrets/kubernetes.io/serviceaccount/token
if test -e $token; then
  code=$(curl -sk -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(cat $token)" "https://127.0.0.1:$PORT/api/v1/secrets")
  test "$code" = 403 || say "the API responds $code to the pod's service account"
fi
echo done
trap 'exit 0' TERM; sleep 100000 & wait $!
"#;

#[test]
fn pod_cannot_reach_host_wharf_or_other_pods() {
    let mut machine = Machine::new();
    let _listener = UnixListener::bind(machine.work_dir().join("socket")).unwrap();
    machine.create(&claim("other", "32Mi"));
    machine.create(&claim("own", "32Mi"));
    machine.create(&pod("other", "other", &format!("echo of-the-other > /data/secret; {KEEPER}")));
    machine.wait_until_running("other");
    let passwd = std::fs::read("/etc/passwd").unwrap();
    let (data, here) = (machine.data().display().to_string(), machine.work_dir().display().to_string());
    let port = machine.port();
    let mut intruder = pod("intruder", "own", INTRUDER);
    intruder["spec"]["containers"][0]["env"] = json!([
        {"name": "DATA", "value": data}, {"name": "HERE", "value": here}, {"name": "PORT", "value": port},
    ]);
    machine.create(&intruder);
    let output = machine.wait_until("the pod has finished its attempts", |machine| {
        let output = machine.container_logs("intruder");
        if output.contains("done\n") { Ok(output) } else { Err(output) }
    });
    let leaks: Vec<&str> = output.lines().filter(|line| line.starts_with("LEAK")).collect();
    assert!(leaks.is_empty(), "{output}");
    assert_eq!(std::fs::read("/etc/passwd").unwrap(), passwd);
    assert!(!std::fs::exists("/etc/wharf-intruder").unwrap());
    // A volume mounted later is not visible to the pod, and the pod does not prevent its removal.
    machine.create(&claim("later", "32Mi"));
    machine.create(&pod("later", "later", KEEPER));
    machine.wait_until_running("later");
    let mounts = machine.run(&["cat", &format!("/proc/{}/mountinfo", machine.process_of("intruder"))]);
    let volume = machine.field("pvc/own", "/spec/volumeName");
    for other in ["other", "later"] {
        let other = machine.field(&format!("pvc/{other}"), "/spec/volumeName");
        assert!(!other.is_empty() && other != volume);
        assert!(!mounts.contains(&other), "{mounts}");
    }
    machine.delete("pod/later");
    machine.delete("pvc/later");
    machine.wait_until_gone("pvc/later");
    machine.wait_for_only_these_mounts(&["other", "intruder"]);
    machine.delete_everything();
}

/// Mounts the whole host at `/host` and must still find neither credentials nor other pods' data. `$DATA` is the
/// data directory.
const VISITOR: &str = r#"
say() { echo "LEAK $*"; }
for place in "/host$DATA" "/host$HERE/bound"; do
  test -d "$place" || say "$place does not exist"
  test -z "$(ls -A "$place")" || say "$place has $(ls -A "$place")"
  cat "$place/kubeconfig" >/dev/null 2>&1 && say "credentials are read in $place"
  umount "$place" 2>/dev/null && say "what covers $place is unmounted"
done
touch "/host$DATA/new" 2>/dev/null && say "the data directory is written to"
awk '{ print $5 }' /proc/self/mountinfo | grep "^/host$DATA/" && say "mounts of others"
test -e /host/etc/passwd || say "the host is not mounted, so nothing was tested"
# By the host's processes: what they have as their root, where they are, what they have open.
for place in /host/proc "/host$HERE/processes"; do
  test -d "$place" && test -z "$(ls -A "$place")" || say "the host's processes are visible in $place"
done
for pid in /host/proc/[0-9]* "/host$HERE/processes"/[0-9]*; do
  test ! -e "$pid/root$DATA/kubeconfig" || say "the host's root is reached by $pid"
  for file in "$pid/root/data/secret" "$pid/cwd/secret"; do
    grep -qs of-the-other "$file" && say "the other's data is read in $file"
  done
done
echo done
trap 'exit 0' TERM; sleep 100000 & wait $!
"#;

#[test]
fn host_path_hides_wharf_and_other_pods() {
    let mut machine = Machine::new();
    machine.create(&claim("other", "32Mi"));
    machine.create(&claim("own", "32Mi"));
    machine.create(&pod("other", "other", &format!("echo of-the-other > /data/secret; {KEEPER}")));
    machine.wait_until_running("other");
    let (data, here) = (machine.data().display().to_string(), machine.work_dir().display().to_string());
    // Also the processes, at a second path.
    let processes = format!("{here}/processes");
    std::fs::create_dir(&processes).unwrap();
    machine.run(&["mount", "-t", "proc", "proc", &processes]);
    // The same directory through another mount and through a symlink.
    let (bound, link) = (format!("{here}/bound"), format!("{here}/link"));
    std::fs::create_dir(&bound).unwrap();
    machine.run(&["mount", "--bind", &data, &bound]);
    std::os::unix::fs::symlink(&data, &link).unwrap();
    let with = |name: &str, path: &str, script: &str| {
        let mut pod = pod(name, "own", script);
        pod["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": path}}]);
        pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = json!("/host");
        pod["spec"]["containers"][0]["env"] =
            json!([{"name": "DATA", "value": data}, {"name": "HERE", "value": here}]);
        pod
    };
    machine.create(&with("visitor", "/", VISITOR));
    let output = machine.wait_until("the pod has finished its attempts", |machine| {
        let output = machine.container_logs("visitor");
        if output.contains("done\n") { Ok(output) } else { Err(output) }
    });
    assert!(!output.contains("LEAK"), "{output}");
    let (into, shows) = ("is refused: it leads into", "is refused: it exposes the host's processes");
    for (name, path, why) in [
        ("whole", data.clone(), into),
        ("deep", format!("{data}/kubelet/pods"), into),
        ("file", format!("{data}/kubeconfig"), into),
        ("bound", bound.clone(), into),
        ("link", format!("{link}/kubeconfig"), into),
        ("processes", "/proc".to_owned(), shows),
        ("process", "/proc/self".to_owned(), shows),
        ("threads", "/proc/1/task".to_owned(), shows),
        ("elsewhere", processes.clone(), shows),
    ] {
        machine.create(&with(name, &path, "cat /host/kubeconfig /host; ls /host"));
        machine.wait_until("an event reports why the pod is rejected", |machine| {
            let messages = machine.try_events(name, "FailedMount")?;
            let refused = messages.iter().any(|message| message.contains(why));
            if refused { Ok(()) } else { Err(format!("{messages:?}")) }
        });
        assert_eq!(machine.field(&format!("pod/{name}"), "/status/phase"), "Pending", "{name}");
        assert_eq!(machine.container_logs(name), "", "{name}");
    }
    machine.run(&["umount", &bound, &processes]);
    machine.delete_everything();
}

/// A driver that stores volumes as host directories, as upstream's hostpath driver does.
#[test]
fn declared_driver_state_is_hidden_from_host_path() {
    let driver_dir = tempfile::Builder::new().prefix("wharf-driver-").tempdir_in("/var/tmp").unwrap();
    let state = driver_dir.path().join("state");
    std::fs::create_dir_all(state.join("volume")).unwrap();
    std::fs::write(state.join("volume/secret"), "of-the-other").unwrap();
    std::fs::write(driver_dir.path().join("seen"), "seen\n").unwrap();
    let state = state.display().to_string();
    let mut machine = Machine::with(&["--pool-size", "4Gi", "--hide", &state]);
    machine.create(&claim("own", "32Mi"));
    let with = |name: &str, path: &str| {
        let script = "cat $STATE/../seen; ls -A $STATE /host$STATE | grep -v ':$' | grep .; echo done; \
                      trap 'exit 0' TERM; sleep 100000 & wait $!";
        let mut pod = pod(name, "own", script);
        pod["spec"]["volumes"] = json!([{"name": "data", "hostPath": {"path": path}}]);
        pod["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = json!("/host");
        pod["spec"]["containers"][0]["env"] = json!([{"name": "STATE", "value": state}]);
        pod
    };
    machine.create(&with("visitor", "/"));
    let output = machine.wait_until("the pod has listed the directories", |machine| {
        let output = machine.container_logs("visitor");
        if output.contains("done\n") { Ok(output) } else { Err(output) }
    });
    assert_eq!(output, "seen\ndone\n");
    machine.create(&with("into", &format!("{state}/volume")));
    machine.wait_until("an event reports why the pod is rejected", |machine| {
        let messages = machine.try_events("into", "FailedMount")?;
        let refused = messages.iter().any(|message| message.contains("is refused: it leads into"));
        if refused { Ok(()) } else { Err(format!("{messages:?}")) }
    });
    machine.delete_everything();
}
