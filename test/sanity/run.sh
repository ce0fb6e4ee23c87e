#!/usr/bin/env bash
# csi-sanity against our drivers: the local pool on three file systems, with and without attach, and the
# SDK's example. A run passes if no test fails, if exactly the tests are skipped that are named in skipped/
# with a reason, and if nothing is left over afterwards: no loop device, no mount, no file in the pool.
#
#   run.sh             all runs
#   run.sh local-xfs   the runs whose name begins so
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root

sanity=$CACHE/csi-sanity-5.6.0/csi-sanity
wharf=$TARGET/debug/wharf
tmpfs=$TARGET/debug/examples/tmpfs
only=${1:-}
passed=0 failed=0

# The tests that may be skipped, from files that give the reason above them.
may_skip() {
  local file
  for file in "$@"; do grep -v '^#' "$ROOT/test/sanity/skipped/$file.txt"; done
}

# The names of skipped tests in a JUnit report, without the labels that ginkgo puts around them.
skipped_in() {
  sed -nE 's/.*<testcase name="\[It\] ([^"]*)".* status="(skipped|pending)".*/\1/p' "$1" |
    sed -e 's/&#34;/"/g; s/&#39;/'\''/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' | sort
}

# judge NAME EXPECTED-SKIPS ACCESS-TYPE: one run of csi-sanity against the driver on $SOCKET.
judge() {
  local name=$1 expected=$2 access=$3 status=0 counts good=0 bad=0
  local report=$WORK/report.xml log=$WORK/sanity.log
  rm -f "$report"
  "$sanity" -csi.endpoint "unix://$SOCKET" -csi.mountdir "$WORK/target" -csi.stagingdir "$WORK/staging" \
    -csi.testvolumesize $((1 << 30)) -csi.testvolumeexpandsize $((2 << 30)) -csi.testvolumeaccesstype "$access" \
    -csi.testnodevolumeattachlimit -ginkgo.no-color -ginkgo.junit-report "$report" >"$log" 2>&1 || status=$?
  counts=$(grep -oE '[0-9]+ Passed \| [0-9]+ Failed' "$log" | tail -n 1) || true
  if [ -z "$counts" ]; then
    tail -n 40 "$log"
    bad=1
  else
    read -r good _ _ bad _ <<<"$counts"
    if [ "$bad" -gt 0 ] || [ "$status" != 0 ]; then
      grep -E '^ *\[FAIL|^Summarizing' "$log" | sort -u || true
      sed -n '/^Summarizing/,$p' "$log"
      tail -n 40 "$DRIVER_LOG"
    fi
    # Not a failed test, and yet csi-sanity is not content: count that as one.
    [ "$status" = 0 ] || [ "$bad" -gt 0 ] || bad=1
  fi
  if ! diff --label expected --label skipped -u <(sort <<<"$expected") <(skipped_in "$report") >"$WORK/diff"; then
    echo "$name: the skipped tests are not those that are expected:"
    cat "$WORK/diff"
    bad=$((bad + 1))
  fi
  rm -rf "$WORK/target" "$WORK/staging"
  if ! leftovers; then
    echo "$name: something was left over"
    bad=$((bad + 1))
  fi
  count "$name" "$good" "$bad"
}

count() {
  printf '%-24s %4d passed, %d failed\n' "$1" "$2" "$3"
  passed=$((passed + $2)) failed=$((failed + $3))
}

wanted() {
  [[ $1 == "$only"* ]]
}

# local_pool NAME FS ACCESS-TYPE ARGUMENT...
local_pool() {
  local name=$1 fs=$2 access=$3 skips=(local)
  shift 3
  wanted "$name" || return 0
  [[ " $* " == *" --attach "* ]] || skips+=(local-unattached)
  pool_up "$fs" 40G
  driver_start "$wharf" driver local --node-id sanity --pool "$POOL" --max-volumes 8 "$@"
  judge "$name" "$(may_skip "${skips[@]}")" "$access"
  driver_stop || count "$name: stop" 0 1
  pool_down
}

example() {
  wanted example-tmpfs || return 0
  POOL=
  driver_start "$tmpfs" --node-id sanity
  judge example-tmpfs "$(may_skip example)" mount
  driver_stop || count "example-tmpfs: stop" 0 1
}

"$ROOT/hack/tools.sh"
(cd "$ROOT" && cargo build --quiet --package wharf && cargo build --quiet --package wharf-driver --example tmpfs)
work_up
for fs in xfs btrfs ext4; do
  local_pool "local-$fs" "$fs" mount
  local_pool "local-$fs-attach" "$fs" mount --attach
done
local_pool local-xfs-block xfs block
local_pool local-ext4-block-attach ext4 block --attach
example
echo "csi-sanity: $passed passed, $failed failed"
[ "$failed" = 0 ]
