# A volume's whole life on two nodes, on each file system and version. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

lives() {
  plant_canaries
  check "driver on node-a" driver_up node-a
  check "driver on node-b" driver_up node-b
  SHARE=/xfs VERSION=4.2 life
  SHARE=/ext4 VERSION=4.1 life
  check "driver stops on node-a" driver_down node-a
  check "driver stops on node-b" driver_down node-b
  check "no worker is left" eventually 10 no_workers
  check "canaries live" canaries_live
}

life() {
  local on="$SHARE ${VERSION}:" v=life-${SHARE#/}
  check "$on create" create node-a "$v"
  check "$on create again: the same volume" create node-b "$v"
  check "$on other size: refused" fails csi node-a volume create "$v" --size 2GiB --access-mode rwx --mount-option "nfsvers=$VERSION" \
    --parameter "server=$NFS_SERVER" --parameter "share=$SHARE"
  check "$on publish on node-a" publish node-a "$v"
  check "$on publish again" publish node-a "$v"
  check "$on publish on node-b" publish node-b "$v"
  local a b
  a=$(target node-a "$v") b=$(target node-b "$v")
  check "$on write on node-a" fill "$a"
  check "$on node-b sees it" eventually 10 test -f "$b/restricted/file"
  check "$on both nodes see the same data" same "$(picture "$b" | sha256sum)" "$(picture "$a" | sha256sum)"
  check "$on stats" csi node-a node stats "$(handle "$v")" --path "$a"
  picture "$a" >/run/before

  check "$on snapshot" snapshot node-a "$v-snap" "$v"
  check "$on snapshot again, by the other controller" snapshot node-b "$v-snap" "$v"
  echo later >"$a/later" && rm "$a/plain/3" && sync -f "$a"
  picture "$a" >/run/after
  check "$on restore" create node-b "$v-restored" --from-snapshot "$(snapshot_handle "$v-snap")"
  check "$on the restored volume is as before" diff /run/before <(picture "$(directory "$v-restored")")
  check "$on clone" create node-a "$v-clone" --from-volume "$(handle "$v")"
  check "$on the clone is as after" diff /run/after <(picture "$(directory "$v-clone")")
  check "$on snapshot as tar.gz" snapshot node-a "$v-tar" "$v" --parameter format=tar.gz
  check "$on restore of tar.gz" create node-a "$v-untar" --from-snapshot "$(snapshot_handle "$v-tar")"
  check "$on it is as after" diff /run/after <(picture "$(directory "$v-untar")")
  check "$on a missing source: refused" fails csi node-a volume create "$v-none" --size 1GiB --access-mode rwx \
    --parameter "server=$NFS_SERVER" --parameter "share=$SHARE" --from-snapshot "$NFS_SERVER#${SHARE#/}#none#none#none"

  check "$on expand" csi node-a volume expand "$(handle "$v")" --size 2GiB
  check "$on data is intact after it" diff /run/after <(picture "$b")

  check "$on create with onDelete=archive" create node-a "$v-archive" --parameter onDelete=archive
  echo kept >"$(directory "$v-archive")/kept"
  check "$on archive" delete node-a "$v-archive"
  check "$on the archive has the data" same "$(cat "/srv$SHARE/archived-$v-archive/kept")" kept
  check "$on create with onDelete=retain" create node-a "$v-retain" --parameter onDelete=retain
  check "$on retain" delete node-a "$v-retain"
  check "$on the directory is kept" test -d "$(directory "$v-retain")"
  check "$on nested subDir" create node-a "$v-nested" --parameter 'subDir=team/app/data'
  check "$on it is where it should be" test -d "/srv$SHARE/team/app/data"
  check "$on delete it" delete node-a "$v-nested"
  check "$on its parents are gone" eventually 10 test ! -e "/srv$SHARE/team"
  mkdir "/srv$SHARE/existing" && echo old >"/srv$SHARE/existing/data"
  check "$on a directory that existed" create node-a "$v-existing" --parameter subDir=existing
  check "$on delete it" delete node-a "$v-existing"
  check "$on it is kept" same "$(cat "/srv$SHARE/existing/data")" old

  check "$on unpublish on node-b" unpublish node-b "$v"
  check "$on unpublish again" unpublish node-b "$v"
  check "$on unpublish on node-a" unpublish node-a "$v"
  check "$on delete snapshots" csi node-a snapshot delete "$(snapshot_handle "$v-snap")"
  check "$on delete snapshots" csi node-b snapshot delete "$(snapshot_handle "$v-tar")"
  for volume in "$v" "$v-restored" "$v-clone" "$v-untar"; do
    check "$on delete $volume" delete node-a "$volume"
    check "$on its directory is gone" test ! -e "$(directory "$volume")"
  done
  check "$on delete again" delete node-b "$v"
  rm -rf "/srv$SHARE/"{existing,"archived-$v-archive","$v-retain"}
  check "$on the share is clean" eventually 30 share_is_clean "$SHARE"
}
