#!/usr/bin/env bash
# Measures `wharf sidecar` beside upstream's sidecars, on a real Kubernetes. Takes about 45 minutes, half of them for
# upstream's snapshots at its defaults.
#
#   sidecar.sh              prints
#   sidecar.sh --snapshots  snapshots alone
#   sidecar.sh --write      prints, and replaces its part of bench/RESULTS.md
#   sidecar.sh --quick      with few objects: to see that it works
#   sidecar.sh --memory     the memory that volumes take alone
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
# As the tests: whatever is mounted here is nobody else's.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"

export PORTS=${PORTS:-16600}
"$ROOT/hack/tools.sh" cluster
"$ROOT/test/upstream/build.sh" >/dev/null
# What is measured is what is shipped; what measures need not be.
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf &&
  cargo build --quiet --release --package wharf-testkit --package wharf-bench)
work_up
# They find each other in one directory.
cp "$TARGET"/dist/wharf "$TARGET"/release/{scripted-driver,bench-sidecar} "$WORK"
# Others' work would be measured too.
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
    *) die "--snapshots, --write, --quick, --memory, or nothing" ;;
  esac
done
"$WORK/bench-sidecar" "${arguments[@]}" | tee "$WORK/section"
[ -n "$write" ] || exit 0
{
  sed "/^$from\$/,\$d" "$ROOT/bench/RESULTS.md"
  cat "$WORK/section"
} >"$WORK/results"
cp "$WORK/results" "$ROOT/bench/RESULTS.md"
