#!/usr/bin/env bash
# Builds this tree, starts `wharf up` in the background and waits until it is up. `up.sh down` stops it.
# WHARF_DATA_DIR is its data directory (default /var/lib/wharf); the log is there too.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
need_root

export WHARF_DATA_DIR=${WHARF_DATA_DIR:-/var/lib/wharf}
wharf=$TARGET/debug/wharf

if [ "${1:-}" = down ]; then
  exec "$wharf" down
fi
[ -x "$wharf" ] || echo "building wharf: the first build takes about 3 minutes on 2 cores"
# The dev profile compiles several times faster than a release build. `make build` builds the optimised binary.
(cd "$ROOT" && cargo build --package wharf)
echo "starting wharf up; its log is $WHARF_DATA_DIR/log"
mkdir -p -m 0700 "$WHARF_DATA_DIR"
log=$WHARF_DATA_DIR/log
out=$(mktemp)
trap 'rm -f "$out"' EXIT
setsid "$wharf" up >"$out" 2>>"$log" </dev/null &
pid=$!
until grep -q 'is up' "$out"; do
  kill -0 "$pid" 2>/dev/null || die "wharf up exited: $(tail -n 3 "$log")"
  sleep 0.05
done
cat "$out"
command -v kubectl >/dev/null || echo "kubectl is not installed: \`make kubectl\` builds one."
