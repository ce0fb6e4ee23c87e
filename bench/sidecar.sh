#!/usr/bin/env bash
# Compares `wharf sidecar` with upstream's sidecars on a real Kubernetes cluster. Takes about 45 minutes, half of them for
# upstream's snapshots with its default settings.
#
#   sidecar.sh              print the results
#   sidecar.sh --snapshots  measure only snapshots
#   sidecar.sh --write      print the results and update their section of bench/RESULTS.md
#   sidecar.sh --quick      use few objects, to check that the benchmark works
#   sidecar.sh --memory     measure only the memory usage per volume
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
# As in the tests: use a private mount namespace.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

export PORTS=${PORTS:-16600}
"$ROOT/hack/tools.sh" cluster
"$ROOT/test/upstream/build.sh" >/dev/null
# The measured binary has the release profile of distributions; the benchmark program need not.
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf &&
  cargo build --quiet --release --package wharf-testkit --package wharf-bench)
work_up
# The benchmark expects all programs in one directory.
cp "$TARGET"/dist/wharf "$TARGET"/release/{scripted-driver,bench-sidecar} "$WORK"
# Other load on the machine distorts the results.
read -r load _ </proc/loadavg
echo "The machine's load is $load" >&2
arguments=()
write=
from='## The sidecar'
for argument in "$@"; do
  case $argument in
    --snapshots) from='## The sidecar: snapshots' arguments+=(snapshots) ;;
    --quick | --memory) arguments+=("${argument#--}") ;;
    --write) write=1 ;;
    *) die "usage: sidecar.sh [--snapshots] [--write] [--quick] [--memory]" ;;
  esac
done
"$WORK/bench-sidecar" "${arguments[@]}" | tee "$WORK/section"
[ -n "$write" ] || exit 0
{
  sed "/^$from\$/,\$d" "$ROOT/bench/RESULTS.md"
  cat "$WORK/section"
} >"$WORK/results"
cp "$WORK/results" "$ROOT/bench/RESULTS.md"
