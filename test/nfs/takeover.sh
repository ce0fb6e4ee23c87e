# Volumes and snapshots as csi-driver-nfs leaves them, and handles that try to reach what is not theirs. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

# foreign NAME HANDLE SUBDIR: a volume that this driver did not create.
foreign() {
  printf '{"volume_id": "%s", "volume_context": {"server": "%s", "share": "%s", "subDir": "%s"}}\n' "$2" "$NFS_SERVER" "$SHARE" "$3" >"/run/volume-$1.json"
}

takeover() {
  plant_canaries
  SHARE=/xfs VERSION=4.2 DEADLINE=60
  check "driver on node-a" driver_up node-a
  # csi-driver-nfs: a directory of mode 0777 minus umask, the handle with a trimmed share and an empty uuid and policy.
  mkdir /srv/xfs/pvc-1 && fill /srv/xfs/pvc-1
  foreign upstream "$NFS_SERVER#xfs#pvc-1##" pvc-1
  picture /srv/xfs/pvc-1 >/run/upstream
  check "publish a volume of csi-driver-nfs" publish node-a upstream
  check "its data is there" diff /run/upstream <(picture "$(target node-a upstream)")
  check "stats" csi node-a node stats "$(handle upstream)" --path "$(target node-a upstream)"
  check "validate" csi node-a volume validate "$(handle upstream)" --access-mode rwx --context "server=$NFS_SERVER" --context share=/xfs --context subDir=pvc-1
  check "clone it" create node-a of-upstream --from-volume "$(handle upstream)"
  check "the clone is equal" diff /run/upstream <(picture "$(directory of-upstream)")
  check "snapshot it" snapshot node-a snap-of-upstream upstream
  check "expand it" csi node-a volume expand "$(handle upstream)" --size 2GiB
  check "unpublish" unpublish node-a upstream

  # csi-driver-nfs: <share>/<snapshot>/<source>.tar.gz, made with `tar -C SOURCE -czf ARCHIVE .`
  mkdir /srv/xfs/snapshot-1 && tar -C /srv/xfs/pvc-1 -czf /srv/xfs/snapshot-1/pvc-1.tar.gz .
  check "restore a snapshot of csi-driver-nfs" create node-a from-tar --from-snapshot "$NFS_SERVER#xfs#snapshot-1#snapshot-1#pvc-1"
  # tar keeps whole seconds of times only.
  check "it is equal except for fractions of seconds" diff <(sed -E 's/\.[0-9]+$//' /run/upstream) <(picture "$(directory from-tar)" | sed -E 's/\.[0-9]+$//')
  check "delete a snapshot of csi-driver-nfs" csi node-a snapshot delete "$NFS_SERVER#xfs#snapshot-1#snapshot-1#pvc-1"
  check "its directory is gone" test ! -e /srv/xfs/snapshot-1

  check "deleting a volume without a record succeeds" delete node-a upstream
  check "and leaves its data" diff /run/upstream <(picture /srv/xfs/pvc-1)

  # A mount made by csi-driver-nfs at the target is unmounted like our own.
  mkdir -p /run/pods/node-a/by-upstream
  in_ns node-a python3 "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs/pvc-1" /run/pods/node-a/by-upstream "addr=$NFS_SERVER,vers=4.2"
  check "unpublish a mount of csi-driver-nfs" csi node-a node unpublish "$(handle upstream)" --target-path /run/pods/node-a/by-upstream
  check "it is gone" test ! -e /run/pods/node-a/by-upstream

  ln -s /srv/xfs/canary-directory /srv/xfs/pvc-link
  local field
  for field in .. ../.. a/../b ../canary-directory /srv/canary-directory . '' '..\x' canary-directory/.. canary-directory pvc-link pvc-link/deep .wharf .wharf/volumes; do
    attack "$NFS_SERVER#xfs#$field##"
    attack "$NFS_SERVER#xfs#$field#uuid#delete"
    attack "$NFS_SERVER#$field#canary-directory##"
    attack "$NFS_SERVER#xfs#x#$field#archive"
    attack "$NFS_SERVER/xfs/$field"
  done
  check "canaries live after $attacks crafted handles" canaries_live
  check "the volume of csi-driver-nfs is unchanged" diff /run/upstream <(picture /srv/xfs/pvc-1)
  check "parameters that leave the share are refused" fails create_once node-a bad --parameter subDir=../canary-directory
  check "parameters that name .wharf are refused" fails create_once node-a bad --parameter subDir=.wharf/volumes
  check "a # in a parameter is refused" fails create_once node-a bad --parameter 'subDir=a#b'
  check "an unresolved template is refused" fails create_once node-a bad --parameter 'subDir=${pvc.metadata.name}'
  check "a symlink in the path is refused" fails create_once node-a bad --parameter subDir=pvc-link/deep/new
  rm /srv/xfs/pvc-link

  check "delete the snapshot" csi node-a snapshot delete "$(snapshot_handle snap-of-upstream)"
  check "delete the clone" delete node-a of-upstream
  check "delete the restored volume" delete node-a from-tar
  rm -rf /srv/xfs/pvc-1
  check "the share is clean" eventually 30 share_is_clean /xfs
  check "driver stops" driver_down node-a
  check "canaries live" canaries_live
}
create_once() { RETRY=0 create "$@"; }
attacks=0
# Whatever the answer, nothing may change. The checks come after all attacks.
attack() {
  attacks=$((attacks + 1))
  csi node-a volume delete "$1" >/dev/null 2>&1 || true
  csi node-a snapshot delete "$1" >/dev/null 2>&1 || true
}
