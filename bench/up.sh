#!/usr/bin/env bash
# Measures `wharf up` beside a real Kubernetes with the same driver. Takes about fifteen minutes.
#
#   up.sh            prints
#   up.sh --write    prints, and replaces its part of bench/RESULTS.md
#   up.sh --quick    with few objects: to see that it works
#   up.sh --ours     ours alone
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
# As the tests: whatever is mounted here is nobody else's.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

# The disk is waited for on both sides.
export PORTS=${PORTS:-16900} EXTRA_ETCD_FLAGS=
arguments=()
write=
for argument in "$@"; do
  case $argument in
    --quick | --ours) arguments+=("${argument#--}") ;;
    --write) write=1 ;;
    *) die "--write, --quick, --ours, or nothing" ;;
  esac
done
"$ROOT/hack/tools.sh" cluster
"$ROOT/test/upstream/build.sh" csi-provisioner hostpathplugin >/dev/null
# What is measured is what is shipped; what measures need not be.
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf &&
  cargo build --quiet --release --package wharf-bench --bin bench-up)
work_up
# They find each other in one directory.
cp "$TARGET/dist/wharf" "$TARGET/release/bench-up" "$WORK"
# Others' work would be measured too.
read -r load _ </proc/loadavg
echo "The machine's load is $load" >&2
"$WORK/bench-up" "${arguments[@]}" | tee "$WORK/section"
[ -z "$write" ] || section_write "One machine" "$WORK/section"
