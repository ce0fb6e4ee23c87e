# Attempts to make the node service unmount, mount or change the wrong thing, or to make it wait. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

attacks() {
  mkdir -p /run/attack /run/pods/node-a
  SHARE=/xfs VERSION=4.2 DEADLINE=40
  mkdir -p /srv/xfs/static/{a,b} /srv/ext4/secret && echo secret >/srv/ext4/secret/file
  check "driver with short deadlines" driver_up node-a --mount-timeout 4 --unmount-timeout 4 --stats-timeout 3 \
    --enable-inline-volumes "$NFS_SERVER:/xfs/static/a"
  symlinks
  name_service
  silent_and_busy
  stacked
  mode_of_a_frozen_server
  versions
  stopped_worker
  check "driver stops" driver_down node-a
  check "no worker is left" eventually 10 no_workers
  rm -rf /srv/xfs/static /srv/ext4/secret
}

# refused COMMAND...: the call fails before its deadline.
refused() {
  local status=0
  "$@" || status=$?
  [ "$status" != 0 ] && [ "$status" != 137 ]
}
# static TARGET SUBDIR ARGUMENT...: publishes a directory of the share without a record.
static() {
  local target=$1 sub=$2
  shift 2
  csi node-a node publish "static-$sub" --target-path "$target" --access-mode rwx --context "share=/xfs/static" \
    --context "subDir=$sub" "$@"
}
unstatic() { csi node-a node unpublish "static-$2" --target-path "$1"; }
mounted_at() { awk -v at="$1" '$5 == at' /proc/self/mountinfo | grep -q .; }
count_at() { [ "$(awk -v at="$1" '$5 == at' /proc/self/mountinfo | wc -l)" = "$2" ]; }

# Whoever can write to a share can create symlinks in it, which the client follows when it mounts a path.
symlinks() {
  local id
  id=csi-$(printf 'x' | sha256sum | cut -d' ' -f1)
  ln -s /ext4/secret /srv/xfs/static/a/absolute && ln -s ../../../ext4/secret /srv/xfs/static/a/relative
  local link
  for link in absolute relative; do
    mkdir -p /run/attack/raw
    in_ns node-a "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs/static/a/$link" /run/attack/raw "vers=4.2,addr=$NFS_SERVER" || true
    [ ! -e /run/attack/raw/file ] || echo "note: the kernel follows the $link symlink out of the share"
    ! mounted_at /run/attack/raw || umount /run/attack/raw
    check "inline: $link symlink is not followed" refused csi node-a node publish "$id" --target-path /run/attack/inline --access-mode rwx \
      --context "server=$NFS_SERVER" --context share=/xfs/static/a --context "subDir=$link"
  done
  check "inline: the share itself is allowed" csi node-a node publish "$id" --target-path /run/attack/inline --access-mode rwx \
    --context "server=$NFS_SERVER" --context share=/xfs/static/a
  check "inline: no setuid" grep -q ' /run/attack/inline [^ ]*nosuid,nodev' /proc/self/mountinfo
  check "inline: unpublish" csi node-a node unpublish "$id" --target-path /run/attack/inline
}

# A name that is no longer resolved is no reason to detach a mount that is in use.
name_service() {
  cp /etc/hosts /run/hosts && echo "$NFS_SERVER nas.test" >>/etc/hosts
  check "names: publish" static /run/attack/name a --context server=nas.test
  sleep 1000 </run/attack/name >/run/attack/name/open &
  local holder=$!
  cp /run/hosts /etc/hosts
  check "names: busy mount stays" refused unstatic /run/attack/name a
  check "names: it is still mounted" mounted_at /run/attack/name
  kill "$holder" && wait "$holder" 2>/dev/null || true
  check "names: unpublish" unstatic /run/attack/name a
  check "names: target is gone" test ! -e /run/attack/name
}

# The server is gone and a process uses the mount.
silent_and_busy() {
  check "silent: publish" static /run/attack/busy a --context "server=$NFS_SERVER"
  sleep 1000 >/run/attack/busy/open &
  local holder=$!
  partition node-a
  check "silent: stats end" refused csi node-a node stats static-a --path /run/attack/busy
  check "silent: repeated publish ends" refused static /run/attack/busy a --context "server=$NFS_SERVER"
  check "silent: busy mount is detached" unstatic /run/attack/busy a
  check "silent: target is gone" test ! -e /run/attack/busy
  check "silent: health ends" csi node-a identity probe
  heal node-a
  kill "$holder" && wait "$holder" 2>/dev/null || true
  check "silent: nothing is stuck" eventually 60 none stuck_processes
  check "silent: publish after" retry static /run/attack/busy a --context "server=$NFS_SERVER"
  check "silent: unpublish after" unstatic /run/attack/busy a
}

# Mounts on top of each other, of a server that is gone; and a neighbour that must stay.
stacked() {
  local i
  check "stack: neighbour" static /run/attack/neighbour b --context "server=$NFS_SERVER"
  mkdir -p /run/attack/stack
  for i in 1 2 3; do
    in_ns node-a "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs/static/a" /run/attack/stack "vers=4.2,addr=$NFS_SERVER,nosharecache"
  done
  check "stack: three mounts" count_at /run/attack/stack 3
  partition node-a
  check "stack: unpublish of a dead server" retry unstatic /run/attack/stack a
  check "stack: nothing is mounted" count_at /run/attack/stack 0
  check "stack: target is gone" test ! -e /run/attack/stack
  check "stack: the neighbour is mounted" mounted_at /run/attack/neighbour
  heal node-a
  check "stack: the neighbour works" eventually 30 touch /run/attack/neighbour/file
  check "stack: unpublish the neighbour" retry unstatic /run/attack/neighbour b
}

# The mount succeeds and the mode cannot be set: the call ends, and its repetition sets the mode.
mode_of_a_frozen_server() {
  chmod 0700 /srv/xfs/static/a
  freeze
  check "mode: publish ends" refused static /run/attack/mode a --context "server=$NFS_SERVER" --context mountPermissions=0751
  check "mode: is unchanged" test "$(stat -c %a /srv/xfs/static/a)" = 700
  thaw
  check "mode: repeated publish" retry static /run/attack/mode a --context "server=$NFS_SERVER" --context mountPermissions=0751
  check "mode: is set" test "$(stat -c %a /srv/xfs/static/a)" = 751
  check "mode: one mount" count_at /run/attack/mode 1
  check "mode: the target below was not changed" unstatic /run/attack/mode a
}

# A volume with an old version does not change the version of others.
versions() {
  check "versions: old" static /run/attack/old a --context "server=$NFS_SERVER" --mount-option vers=4.0
  check "versions: any" static /run/attack/any b --context "server=$NFS_SERVER"
  check "versions: the newest" grep -E ' /run/attack/any .*vers=4\.2' /proc/self/mountinfo
  check "versions: unpublish" unstatic /run/attack/old a
  check "versions: unpublish the other" unstatic /run/attack/any b
}

# The share worker is stopped: the call ends, and the next one succeeds.
stopped_worker() {
  check "stopped: create" create node-a attack-v
  pkill -STOP -f 'nfs-worker share'
  DEADLINE=100 check "stopped: create ends" refused csi node-a volume create attack-w --size 1GiB --access-mode rwx \
    --parameter "server=$NFS_SERVER" --parameter "share=$SHARE" --mount-option "nfsvers=$VERSION"
  check "stopped: create after" create node-a attack-w
  check "stopped: delete" delete node-a attack-v
  check "stopped: delete the other" delete node-a attack-w
}
