#!/usr/bin/env bash
# Starts `wharf up` in the background, built from this tree, and waits until it is up. `up.sh down` stops it.
# WHARF_DATA_DIR is its directory, /var/lib/wharf if nobody says otherwise; its log is there too.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
need_root

export WHARF_DATA_DIR=${WHARF_DATA_DIR:-/var/lib/wharf}
wharf=$TARGET/release/wharf

if [ "${1:-}" = down ]; then
  exec "$wharf" down
fi
(cd "$ROOT" && cargo build --quiet --release --package wharf)
mkdir -p -m 0700 "$WHARF_DATA_DIR"
log=$WHARF_DATA_DIR/log
out=$(mktemp)
trap 'rm -f "$out"' EXIT
setsid "$wharf" up >"$out" 2>>"$log" </dev/null &
pid=$!
until grep -q 'is up' "$out"; do
  kill -0 "$pid" 2>/dev/null || die "wharf up has ended: $(tail -n 3 "$log")"
  sleep 0.05
done
cat "$out"
command -v kubectl >/dev/null || echo "There is no kubectl on this machine: \`make kubectl\` builds one."
