#!/usr/bin/env bash
# Compares `wharf up` with a real Kubernetes cluster that uses the same driver. Takes about fifteen minutes.
#
#   up.sh            print the results
#   up.sh --write    print the results and update their section of bench/RESULTS.md
#   up.sh --quick    use few objects, to check that the benchmark works
#   up.sh --ours     measure only wharf
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
# As in the tests: use a private mount namespace.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

# Both sides sync to disk.
export PORTS=${PORTS:-16900} EXTRA_ETCD_FLAGS=
arguments=()
write=
for argument in "$@"; do
  case $argument in
    --quick | --ours) arguments+=("${argument#--}") ;;
    --write) write=1 ;;
    *) die "usage: up.sh [--write] [--quick] [--ours]" ;;
  esac
done
"$ROOT/hack/tools.sh" cluster
"$ROOT/test/upstream/build.sh" csi-provisioner hostpathplugin >/dev/null
# The measured binary has the release profile of distributions; the benchmark program need not.
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf &&
  cargo build --quiet --release --package wharf-bench --bin bench-up)
work_up
# The benchmark expects both programs in one directory.
cp "$TARGET/dist/wharf" "$TARGET/release/bench-up" "$WORK"
# Other load on the machine distorts the results.
read -r load _ </proc/loadavg
echo "The machine's load is $load" >&2
"$WORK/bench-up" "${arguments[@]}" | tee "$WORK/section"
[ -z "$write" ] || section_write "One machine" "$WORK/section"
