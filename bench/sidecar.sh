#!/usr/bin/env bash
# Measures `wharf sidecar` and upstream's sidecars side by side: one run, the same clusters, the same scripted driver.
# Takes most of an hour, since upstream at its defaults does a few volumes a second; CLAIMS=200 shortens that.
#
#   sidecar.sh            prints
#   sidecar.sh --write    prints, and replaces the section in bench/RESULTS.md
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
# As the tests: whatever is mounted here is nobody else's.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
work_up
"$ROOT/hack/tools.sh" cluster

echo "Building with the dist profile" >&2
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf &&
  cargo build --quiet --profile dist --package wharf-testkit --bin scripted-driver --bin sidecar-bench)
"$TARGET/dist/sidecar-bench" | tee "$WORK/table"

section() {
  cat <<END_OF_HEAD

## Sidecar

One run of \`bench/sidecar.sh\` on $(nproc) processors, Linux $(uname -r), $(date --utc +%F): Kubernetes 1.34.2 without
nodes, etcd without fsync, a scripted driver that answers at once. Upstream is external-provisioner v5.1.0 and
external-resizer v1.14.0, at their defaults, and tuned to 1,000 requests a second and 100 workers; wharf runs the same two
roles in one process without further flags. "Times as good" is above 1 where wharf is better. Upstream's attacher is not
among the packages that registries have: its figures are what its default of 5 requests a second allows.

END_OF_HEAD
  cat "$WORK/table"
}

if [ "${1:-}" = --write ]; then
  sed '/^## Sidecar$/,$d' "$ROOT/bench/RESULTS.md" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$WORK/results"
  section >>"$WORK/results"
  cp "$WORK/results" "$ROOT/bench/RESULTS.md"
fi
