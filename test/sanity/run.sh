#!/usr/bin/env bash
# Runs csi-sanity against our drivers: the local driver on three file systems, with and without attach; the DigitalOcean driver
# against the fake API with real devices; the NFS driver on a directory instead of an export; the SDK's example; and the driver
# template. A run passes if no test fails, if the skipped tests are exactly those that skipped/ lists with a reason, and if no
# loop device, mount or pool file is left.
#
#   run.sh             all runs
#   run.sh local-xfs   the runs whose name starts with local-xfs
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root

sanity=$CACHE/csi-sanity-5.6.0/csi-sanity
wharf=$TARGET/debug/wharf
fake_digitalocean=$TARGET/debug/fake-digitalocean
tmpfs=$TARGET/debug/examples/tmpfs
template=$TARGET/debug/driver-template
nfs_test_driver=$TARGET/debug/nfs-test-driver
only=${1:-}
passed=0 failed=0

# Prints the tests that may be skipped. In the files, a comment above the tests gives the reason.
may_skip() {
  local file
  for file in "$@"; do grep -v '^#' "$ROOT/test/sanity/skipped/$file.txt"; done
}

# Prints the names of skipped tests in a JUnit report, without ginkgo's labels.
skipped_in() {
  sed -nE 's/.*<testcase name="\[It\] ([^"]*)".* status="(skipped|pending)".*/\1/p' "$1" |
    sed -e 's/&#34;/"/g; s/&#39;/'\''/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' | sort
}

# judge NAME EXPECTED-SKIPS ACCESS-TYPE ARGUMENT...: one run of csi-sanity against the driver on $SOCKET.
judge() {
  local name=$1 expected=$2 access=$3 status=0 counts good=0 bad=0
  shift 3
  local report=$WORK/report.xml log=$WORK/sanity.log
  rm -f "$report"
  "$sanity" -csi.endpoint "unix://$SOCKET" -csi.mountdir "$WORK/target" -csi.stagingdir "$WORK/staging" \
    -csi.testvolumesize $((1 << 30)) -csi.testvolumeexpandsize $((2 << 30)) -csi.testvolumeaccesstype "$access" \
    -csi.testnodevolumeattachlimit "$@" -ginkgo.no-color -ginkgo.junit-report "$report" >"$log" 2>&1 || status=$?
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
    # csi-sanity failed without a failed test: count it as one.
    [ "$status" = 0 ] || [ "$bad" -gt 0 ] || bad=1
  fi
  if ! diff --label expected --label skipped -u <(sort <<<"$expected") <(skipped_in "$report") >"$WORK/diff"; then
    echo "$name: the skipped tests differ from the expected ones:"
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
  driver_start "$wharf" driver local --create-pool --node-id sanity --pool "$POOL" --max-volumes 8 "$@"
  judge "$name" "$(may_skip "${skips[@]}")" "$access"
  driver_stop || count "$name: stop" 0 1
  pool_down
}

# digitalocean NAME ACCESS-TYPE: the driver as controller and node of a droplet, against a fake API whose actions take time and
# whose volumes are real devices.
digitalocean() {
  local name=$1 access=$2 fake url
  wanted "$name" || return 0
  POOL=
  mkdir -p "$WORK/links"
  # A previous fake wrote its address to the same file.
  : >"$WORK/fake.out"
  "$fake_digitalocean" --listen 127.0.0.1:0 --state "$WORK/disk" --droplet 101 --region nyc3 --attach-real "$WORK/links" \
    --action-delay 300ms --device-delay 200ms --snapshot-interval 0 --volume-limit 0 --requests-per-minute 0 --requests-per-hour 0 \
    </dev/null >"$WORK/fake.out" 2>"$WORK/fake.log" &
  fake=$!
  until url=$(sed -n 's/^api //p' "$WORK/fake.out") && [ -n "$url" ]; do
    kill -0 "$fake" 2>/dev/null || die "the fake API did not start: $(tail -n 5 "$WORK/fake.log")"
    sleep 0.05
  done
  printf 'sanity' >"$WORK/token"
  driver_start "$wharf" driver digitalocean --url "$url" --token-file "$WORK/token" --region nyc3 --droplet-id 101 \
    --device-dir "$WORK/links/101" --state-dir "$WORK/notes" --do-api-rate-limit 1000
  judge "$name" "$(may_skip digitalocean)" "$access"
  driver_stop || count "$name: stop" 0 1
  [ -z "$(ls -A "$WORK/notes")" ] || count "$name: state files of deleted volumes" 0 1
  [ "$("$wharf" driver digitalocean orphans --no-cluster --url "$url" --token-file "$WORK/token" --region nyc3 | wc -l)" = 1 ] ||
    count "$name: volumes left over" 0 1
  kill -TERM "$fake"
  wait "$fake" || count "$name: the fake API" 0 1
  rm -rf "$WORK/disk" "$WORK/links" "$WORK/notes"
}

# The NFS driver with its worker processes, on a directory instead of an export: the machine's kernel may have no NFS client.
nfs() {
  wanted nfs || return 0
  POOL=
  mkdir -p "$WORK/nas/share"
  printf 'server: nas\nshare: /share\n' >"$WORK/parameters.yaml"
  driver_start "$nfs_test_driver" --node-id sanity --export "nas=$WORK/nas"
  judge nfs "$(may_skip nfs)" mount -csi.testvolumeparameters "$WORK/parameters.yaml"
  driver_stop || count "nfs: stop" 0 1
  [ "$(ls -A "$WORK/nas/share")" = .wharf ] || count "nfs: volumes left over" 0 1
  rm -rf "$WORK/nas"
}

example() {
  wanted example-tmpfs || return 0
  POOL=
  driver_start "$tmpfs" --node-id sanity
  judge example-tmpfs "$(may_skip example)" mount
  driver_stop || count "example-tmpfs: stop" 0 1
}

template() {
  wanted template || return 0
  POOL=
  mkdir "$WORK/volumes"
  driver_start "$template" --node-id sanity --root "$WORK/volumes"
  judge template "$(may_skip example)" mount
  driver_stop || count "template: stop" 0 1
  rmdir "$WORK/volumes" || count "template: volumes left over" 0 1
}

"$ROOT/hack/tools.sh"
programs_up
work_up
for fs in xfs btrfs ext4; do
  local_pool "local-$fs" "$fs" mount
  local_pool "local-$fs-attach" "$fs" mount --attach
done
local_pool local-xfs-block xfs block
local_pool local-ext4-block-attach ext4 block --attach
digitalocean digitalocean mount
digitalocean digitalocean-block block
nfs
example
template
echo "csi-sanity: $passed passed, $failed failed"
[ "$failed" = 0 ]
