# SIGKILL of both drivers at random moments while they create, clone, snapshot, restore and delete; at the end nothing is lost and nothing
# is left. Sourced by guest.sh. KILLS sets the number of rounds, SEED repeats a run.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

kills() {
  local round node pid operation
  RANDOM=${SEED:-$((SRANDOM % 32768))}
  echo "SEED=$RANDOM"
  plant_canaries
  SHARE=/xfs VERSION=4.2 DEADLINE=25
  for node in "${NODES[@]}"; do check "driver on $node" driver_up "$node"; done
  check "create the source" create node-a kill-source
  fill "$(directory kill-source)"
  picture "$(directory kill-source)" >/run/source
  for ((round = 0; round < ${KILLS:-12}; round++)); do
    node=${NODES[round % 2]}
    operation=round_$((round % 3))
    "$operation" "$node" "kill-$round" >/run/round 2>&1 &
    pid=$!
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    driver_kill "$node"
    driver_up "$node"
    check "round $round: ${operation} succeeds after a kill" wait "$pid"
    [ ! -s /run/round ] || cat /run/round
    check "round $round: the source is intact" diff /run/source <(picture "$(directory kill-source)")
  done
  check "delete the source" delete node-b kill-source
  check "the share is clean" eventually 60 share_is_clean "$SHARE"
  for node in "${NODES[@]}"; do check "driver stops on $node" driver_down "$node"; done
  check "no worker is left" eventually 10 no_workers
  check "canaries live" canaries_live
}
intact() { diff /run/source <(picture "$(directory "$1")"); }
round_0() { create "$1" "$2" --from-volume "$(handle kill-source)" >/dev/null && intact "$2" && delete "$1" "$2" >/dev/null; }
round_1() {
  snapshot "$1" "$2" kill-source >/dev/null && create "$1" "$2" --from-snapshot "$(snapshot_handle "$2")" >/dev/null && intact "$2" &&
    retry csi "$1" snapshot delete "$(snapshot_handle "$2")" >/dev/null && delete "$1" "$2" >/dev/null
}
round_2() { create "$1" "$2" && publish "$1" "$2" >/dev/null && echo x >"$(target "$1" "$2")/x" && unpublish "$1" "$2" >/dev/null && delete "$1" "$2" >/dev/null; }
