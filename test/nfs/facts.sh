# What the driver's design takes for granted about Linux' NFS client: see "Facts about Linux" in docs/design-nfs.md. Sourced by guest.sh.
# shellcheck shell=bash

call() { timeout --signal KILL 60 python3 "$HERE/call.py" "$@"; }
mount_nfs() { timeout --signal KILL 30 nsenter --net="/run/netns/$1" python3 "$HERE/call.py" mount nfs "$NFS_SERVER:$2" "$3" "addr=$NFS_SERVER,$4"; }
answers() { same "$("${@:2}")" "$1"; }
source_of() { nfs_mounts | awk -v at="$1" '$1 == at { print $2 }'; }
device_of() { awk -v at="$1" '$5 == at { print $3 }' /proc/self/mountinfo; }
gone() { [ ! -d "/proc/$1" ] || grep -q 'State:.Z' "/proc/$1/status"; }
# dies PID: SIGKILL ends the process.
dies() {
  kill -KILL "$1"
  eventually 5 gone "$1"
}
stays() { ! dies "$1"; }
# waiting COMMAND...: starts a program and sets $pid; it must still run after a second.
waiting() {
  "$@" >/dev/null 2>&1 &
  pid=$!
  sleep 1
  kill -0 "$pid"
}

facts() {
  mkdir -p /mnt/{a,b,c,d}
  check "mount(2) of type nfs without mount.nfs" mount_nfs node-a /xfs /mnt/a vers=4.2
  mkdir -p /mnt/a/v1/deep /mnt/a/v2
  check "without addr: EINVAL" answers EINVAL in_ns node-a python3 "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs" /mnt/d vers=4.2
  check "a directory that does not exist: ENOENT" answers ENOENT mount_nfs node-a /xfs/none /mnt/d vers=4.2
  check "mount a directory of the export" mount_nfs node-a /xfs/v1 /mnt/b vers=4.2
  check "both have the same device" same "$(device_of /mnt/a)" "$(device_of /mnt/b)"
  check "only the source differs" same "$(source_of /mnt/b)" "$NFS_SERVER:/xfs/v1"
  head -c 1M /dev/urandom >/mnt/a/file
  check "4.2 on xfs clones" call clone /mnt/a/file /mnt/a/clone
  check "4.2 copies on the server" call copy /mnt/a/file /mnt/a/copy
  check "the copies are equal" cmp /mnt/a/clone /mnt/a/copy
  check "4.2 has user attributes" call setxattr /mnt/a/file user.test
  check "RENAME_NOREPLACE: EINVAL" answers EINVAL call rename /mnt/a/copy /mnt/a/other 1
  check "mount 4.1" mount_nfs node-a /ext4 /mnt/d vers=4.1
  echo data >/mnt/d/file
  check "4.1 does not clone" answers ENOTSUP call clone /mnt/d/file /mnt/d/clone
  check "4.1 has no attributes" answers ENOTSUP call setxattr /mnt/d/file user.test
  check "unmount 4.1" call umount /mnt/d 0

  # Two writers with dirty pages, and a silent server.
  check "mount for writers" mount_nfs node-a /ext4 /mnt/c vers=4.2
  rm -f /run/go
  python3 "$HERE/call.py" write /mnt/c/w1 /run/go fsync >/run/w1 &
  local w1=$! w2 lock
  python3 "$HERE/call.py" write /mnt/c/w2 /run/go exit >/run/w2 &
  w2=$!
  check "writers are ready" eventually 20 grep -q ready /run/w1 /run/w2
  eventually 20 grep -q ready /run/w2
  partition
  touch /run/go
  sleep 1
  check "stat waits" waiting stat -f /mnt/b
  check "SIGKILL ends stat" dies "$pid"
  check "create waits" waiting touch /mnt/b/new
  check "SIGKILL ends create" dies "$pid"
  check "mount waits" waiting nsenter --net=/run/netns/node-b python3 "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs" /mnt/d "addr=$NFS_SERVER,vers=4.2"
  check "SIGKILL ends mount" dies "$pid"
  check "SIGKILL does not end fsync" stays "$w1"
  check "SIGKILL does not end an exit with dirty pages" stays "$w2"
  check "unmount next to another mount does not contact the server" within 10 python3 "$HERE/call.py" umount /mnt/b 0
  check "MNT_DETACH does not wait" within 10 python3 "$HERE/call.py" umount /mnt/c 2
  heal
  check "after the partition the writers end" eventually 60 gone "$w1"
  check "after the partition nothing is stuck" eventually 60 none stuck_processes

  check "mount on another node" mount_nfs node-b /xfs /mnt/b vers=4.2
  python3 "$HERE/call.py" lock /mnt/a/lock /run/end >/run/lock &
  lock=$!
  check "lock" eventually 20 grep -q locked /run/lock
  server_restart true
  check "after a restart with a grace period the lock is held" answers EAGAIN call lock /mnt/b/lock /run/go
  touch /run/end
  check "and the holder can write" wait "$lock"

  freeze
  check "a frozen file system blocks writes" waiting touch /mnt/a/frozen
  check "SIGKILL ends them" dies "$pid"
  check "statfs of a frozen file system answers" within 5 stat -f /mnt/a
  thaw

  check "mount a volume" mount_nfs node-a /xfs/v1 /mnt/c vers=4.2
  make_stale
  check "a new file system makes a volume stale" eventually 10 stale /mnt/c
  check "its root is empty, not stale" within 10 ls /mnt/a
  for target in /mnt/a /mnt/b /mnt/c; do check "unmount $target" call umount "$target" 0; done
  check "no mount is left" none nfs_mounts
}
# statfs is never answered from the cache.
stale() { [[ $(stat -f "$1" 2>&1) == *"Stale file handle"* ]]; }
