# csi-sanity against the driver on a real NFS server. Sourced by guest.sh. No test may fail, and the skipped tests are exactly those that
# test/sanity/skipped/nfs.txt lists with a reason.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

sanity() {
  plant_canaries
  sanity_on /xfs 4.2
  check "canaries live" canaries_live
}

sanity_on() {
  local share=$1 status=0 counts good bad
  printf 'server: %s\nshare: %s\nnfsVersion: "%s"\n' "$NFS_SERVER" "$share" "$2" >/run/parameters.yaml
  check "driver on node-a" driver_up node-a
  timeout --signal KILL 900 "$SANITY" -csi.endpoint unix:///run/node-a.sock -csi.mountdir /run/sanity-target -csi.stagingdir /run/sanity-staging \
    -csi.testvolumesize $((1 << 30)) -csi.testvolumeexpandsize $((2 << 30)) -csi.testvolumeparameters /run/parameters.yaml \
    -csi.testnodevolumeattachlimit -ginkgo.no-color -ginkgo.junit-report /run/report.xml ${SANITY_FOCUS:+-ginkgo.focus "$SANITY_FOCUS"} \
    >/run/sanity.log 2>&1 || status=$?
  counts=$(grep -oE '[0-9]+ Passed \| [0-9]+ Failed' /run/sanity.log | tail -n 1) || true
  read -r good _ _ bad _ <<<"${counts:-0 Passed | 1 Failed}"
  if [ "$bad" -gt 0 ] || [ "$status" != 0 ]; then
    sed -n '/^Summarizing/,$p' /run/sanity.log
    # What csi-sanity was told, which the summary does not have.
    grep -B2 -A12 -E '\[FAILED\]' /run/sanity.log | head -n 200 || true
    tail -n 30 /run/node-a.log
    [ "$bad" -gt 0 ] || bad=1
  fi
  printf 'csi-sanity on %s with NFS %s: %s passed, %s failed\n' "$share" "$2" "$good" "$bad"
  passed=$((passed + good)) failed=$((failed + bad))
  check "the skipped tests are the expected ones" diff --label expected --label skipped -u \
    <(grep -v '^#' "$HERE/../sanity/skipped/nfs.txt" | sort) <(skipped_in /run/report.xml)
  check "the share is clean" eventually 60 share_is_clean "$share"
  check "driver stops" driver_down node-a
  check "no worker is left" eventually 10 no_workers
}

# The names of skipped tests in a JUnit report, without ginkgo's labels.
skipped_in() {
  sed -nE 's/.*<testcase name="\[It\] ([^"]*)".* status="(skipped|pending)".*/\1/p' "$1" |
    sed -e 's/&#34;/"/g; s/&#39;/'\''/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g' | sort
}
