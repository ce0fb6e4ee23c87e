# The node service with static volumes, while the server fails. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"
# shellcheck source=test/nfs/faults.sh
source "$HERE/faults.sh"

# static NAME SUBDIR: a volume that no driver created.
static() {
  printf '{"volume_id": "static-%s", "volume_context": {"server": "%s", "share": "%s", "subDir": "%s"}}\n' "$1" "$NFS_SERVER" "$SHARE" "$2" \
    >"/run/volume-$1.json"
}
stats() { csi "$1" node stats "$(handle "$2")" --path "$(target "$1" "$2")"; }
listed() { grep -q "$(target "$1" "$2") " /proc/self/mountinfo; }

nodes() {
  local fault
  SHARE=/xfs VERSION=4.2 DEADLINE=45
  mkdir -p /srv/xfs/s1 /srv/xfs/s2 /srv/xfs/s3
  static s1 s1 && static s2 s2 && static s3 s3
  check "driver on node-a" driver_up node-a --unmount-timeout 3 --mount-timeout 10 --stats-timeout 3 --vol-stats-cache-expire-in-minutes 10
  check "driver on node-b" driver_up node-b
  check "publish" publish node-a s1
  check "publish again" publish node-a s1
  check "publish on node-b" publish node-b s1
  echo shared >"$(target node-a s1)/file" && sync -f "$(target node-a s1)"
  check "node-b sees the file" same "$(cat "$(target node-b s1)/file")" shared
  check "stats" stats node-a s1
  check "read-only" publish node-b s2 --read-only
  check "a read-only volume cannot be written" fails touch "$(target node-b s2)/file"
  check "unpublish it" unpublish node-b s2
  check "a missing directory: refused" fails csi node-a node publish none --target-path /run/pods/node-a/none --access-mode rwx \
    --context "server=$NFS_SERVER" --context share=/xfs --context subDir=none
  check "its target is not left mounted" fails grep -q /run/pods/node-a/none /proc/self/mountinfo
  check "a server that does not exist: refused in seconds" fails csi node-a node publish none --target-path /run/pods/node-a/none \
    --access-mode rwx --context server=10.99.1.77 --context share=/xfs
  check "an inline volume: refused" fails csi node-a node publish none --target-path /run/pods/node-a/none --access-mode rwx \
    --context "server=$NFS_SERVER" --context share=/xfs --context csi.storage.k8s.io/ephemeral=true
  for fault in silent refused frozen; do
    check "$fault: publish before" publish node-a s2
    # Dirty pages: the worst case for an unmount.
    head -c 1M /dev/urandom >"$(target node-a s2)/dirty"
    "$fault"
    [ "$fault" = frozen ] || check "$fault: stats of a volume without cached numbers end" ends csi node-a node stats "$(handle s2)" --path "$(target node-a s2)"
    check "$fault: publish of another ends" ends csi node-a node publish "$(handle s3)" --target-path "$(target node-a s3)" --access-mode rwx \
      --context "server=$NFS_SERVER" --context share=/xfs --context subDir=s3
    check "$fault: probe answers" csi node-a identity probe
    check "$fault: unpublish succeeds" csi node-a node unpublish "$(handle s2)" --target-path "$(target node-a s2)"
    check "$fault: the mount is gone" fails listed node-a s2
    check "$fault: the target is gone" test ! -e "$(target node-a s2)"
    [ "$fault" != silent ] || check "silent: node-b is not affected" within 10 cat "$(target node-b s1)/file"
    "${fault}_end"
    check "$fault: publish after" publish node-a s3
    check "$fault: the other mount works again" within 60 cat "$(target node-a s1)/file"
    check "$fault: stats after" retry stats node-a s3
    check "$fault: unpublish after" unpublish node-a s3
    check "$fault: no process is stuck" eventually 60 none stuck_processes
  done
  # The volume's directory is replaced while it is mounted.
  check "stale: publish" publish node-a s2
  rm -rf /srv/xfs/s2 && mkdir /srv/xfs/s2 && echo new >/srv/xfs/s2/new
  check "stale: publish again replaces the mount" publish node-a s2
  check "stale: it shows the new directory" same "$(cat "$(target node-a s2)/new")" new
  check "stale: unpublish" unpublish node-a s2
  # A killed driver leaves mounts alone.
  driver_kill node-a
  check "killed: the mount works" within 10 cat "$(target node-a s1)/file"
  check "killed: driver starts again" driver_up node-a
  check "unpublish on node-a" unpublish node-a s1
  check "unpublish on node-b" unpublish node-b s1
  check "unpublish again" unpublish node-b s1
  check "driver stops on node-a" driver_down node-a
  check "driver stops on node-b" driver_down node-b
  check "no worker is left" eventually 10 no_workers
  rm -rf /srv/xfs/s1 /srv/xfs/s2 /srv/xfs/s3
}
