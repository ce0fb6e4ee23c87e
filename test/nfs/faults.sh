# Each RPC while the server is silent, refuses connections or blocks writes, before the call and in the middle of it: the call ends by its
# deadline, and after the fault it succeeds. Sourced by guest.sh.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

silent() { partition node-a; }
silent_end() { heal node-a; }
refused() { server_stop; }
refused_end() {
  server_start
  end_grace
}
frozen() { freeze; }
frozen_end() { thaw; }

# ends COMMAND...: the call returns, with whatever result, before its deadline.
ends() {
  local status=0
  "$@" || status=$?
  [ "$status" != 137 ]
}

faults() {
  plant_canaries
  SHARE=/xfs VERSION=4.2 DEADLINE=25
  check "driver on node-a" driver_up node-a
  check "driver on node-b" driver_up node-b
  check "volume for clones" create node-a faults-source
  fill "$(directory faults-source)"
  check "snapshot for restores" snapshot node-a faults-snap faults-source
  local fault
  for fault in silent refused frozen; do
    at_rest "$fault"
    in_the_middle "$fault"
  done
  stale_volume
  check "delete the snapshot" retry csi node-a snapshot delete "$(snapshot_handle faults-snap)"
  check "delete the source" delete node-a faults-source
  check "the share is clean" eventually 60 share_is_clean "$SHARE"
  check "driver stops on node-a" driver_down node-a
  check "driver stops on node-b" driver_down node-b
  check "no worker is left" eventually 10 no_workers
}

# The fault is there before the calls.
at_rest() {
  local fault=$1 v=faults-$1 arguments
  check "$fault: create before" create node-a "$v"
  check "$fault: publish before" publish node-a "$v"
  echo data >"$(target node-a "$v")/data"
  sync -f "$(target node-a "$v")"
  mapfile -t arguments < <(class)
  "$fault"
  check "$fault: create ends" ends csi node-a volume create "$v-new" --size 1GiB "${arguments[@]}"
  check "$fault: snapshot ends" ends csi node-a snapshot create "$v-snap" --volume "$(handle "$v")"
  check "$fault: stats end" ends csi node-a node stats "$(handle "$v")" --path "$(target node-a "$v")"
  check "$fault: delete ends" ends csi node-a volume delete "$(handle faults-source)-none"
  check "$fault: publish of another ends" ends csi node-a node publish "$(handle faults-source)" --target-path /run/pods/node-a/other \
    --access-mode rwx --context "server=$NFS_SERVER" --context "share=$SHARE" --context subDir=faults-source
  check "$fault: probe answers" csi node-a identity probe
  check "$fault: unpublish succeeds" csi node-a node unpublish "$(handle "$v")" --target-path "$(target node-a "$v")"
  check "$fault: no mount is left for the pod" fails grep -q "$(target node-a "$v") " /proc/self/mountinfo
  "${fault}_end"
  check "$fault: data is there" eventually 30 grep -q data "$(directory "$v")/data"
  check "$fault: create after" create node-a "$v-new"
  check "$fault: publish after" publish node-a "$v"
  check "$fault: stats after" retry csi node-a node stats "$(handle "$v")" --path "$(target node-a "$v")"
  check "$fault: unpublish after" unpublish node-a "$v"
  check "$fault: unpublish of the other" retry csi node-a node unpublish "$(handle faults-source)" --target-path /run/pods/node-a/other
  check "$fault: snapshot after" snapshot node-a "$v-snap" "$v"
  check "$fault: delete snapshot" retry csi node-a snapshot delete "$(snapshot_handle "$v-snap")"
  check "$fault: delete" delete node-a "$v"
  check "$fault: delete the new one" delete node-a "$v-new"
  check "$fault: nothing is stuck" eventually 30 none stuck_processes
  check "$fault: canaries live" canaries_live
}

# The fault begins while the call runs, at a different moment each time.
in_the_middle() {
  local fault=$1 moment call v=middle-$1 pid
  for moment in 0.3 0.8 1.5; do
    for call in create clone restore snapshot delete; do
      case $call in
        delete) check "$fault at $moment: create for delete" create node-a "$v-$call" ;;
      esac
      "middle_$call" "$v-$call" >/run/middle 2>&1 &
      pid=$!
      sleep "$moment"
      "$fault"
      sleep 3
      "${fault}_end"
      check "$fault at $moment in $call: it succeeds after the fault" wait "$pid"
      [ "$call" != delete ] || continue
      check "$fault at $moment in $call: clean up" "middle_${call}_undo" "$v-$call"
    done
  done
  check "$fault in the middle: nothing is stuck" eventually 60 none stuck_processes
  check "$fault in the middle: canaries live" canaries_live
}
equal_to_source() { diff <(picture "$(directory faults-source)") <(picture "$(directory "$1")"); }
middle_create() { create node-a "$1" && test -d "$(directory "$1")"; }
middle_create_undo() { delete node-a "$1"; }
middle_clone() { create node-a "$1" --from-volume "$(handle faults-source)" && equal_to_source "$1"; }
middle_clone_undo() { delete node-a "$1"; }
middle_restore() { create node-a "$1" --from-snapshot "$(snapshot_handle faults-snap)" && equal_to_source "$1"; }
middle_restore_undo() { delete node-a "$1"; }
middle_snapshot() { snapshot node-a "$1" faults-source; }
middle_snapshot_undo() { retry csi node-a snapshot delete "$(snapshot_handle "$1")"; }
middle_delete() { delete node-a "$1" && test ! -e "$(directory "$1")"; }

# The directory of a mounted volume is replaced: its mount is stale. Publishing again replaces the mount.
stale_volume() {
  local v=faults-stale
  check "stale: create" create node-a "$v"
  check "stale: publish" publish node-a "$v"
  rm -rf "$(directory "$v")" && mkdir "$(directory "$v")"
  check "stale: stats end" ends csi node-a node stats "$(handle "$v")" --path "$(target node-a "$v")"
  check "stale: unpublish" unpublish node-a "$v"
  check "stale: delete does not touch a directory that is not the volume's" ends csi node-a volume delete "$(handle "$v")"
  check "stale: the directory is there" test -d "$(directory "$v")"
  rmdir "$(directory "$v")"
  check "stale: delete without a directory" delete node-a "$v"
}
