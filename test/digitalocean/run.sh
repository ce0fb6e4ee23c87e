#!/usr/bin/env bash
# Runs DigitalOcean's own clients, in the versions that its CSI driver uses, against our fake API. The address of the metadata
# service is built into them, so everything runs in a network namespace whose loopback interface has that address.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root

FAKE_PID=

# Runs inside the network namespace; the caller passes the paths.
inside() {
  ip link set lo up
  ip address add 169.254.169.254/32 dev lo
  work_up
  trap 'fake_down; work_down' EXIT
  "$FAKE" --listen 127.0.0.1:8000 --state "$WORK/state" --droplet 2756294@169.254.169.254:80 \
    --attach-real "$WORK/by-id" --action-delay 500ms >"$WORK/ready" 2>"$WORK/log" &
  FAKE_PID=$!
  local i
  for ((i = 0; i < 200; i++)); do
    [ ! -s "$WORK/ready" ] || break
    kill -0 "$FAKE_PID" 2>/dev/null || break
    sleep 0.05
  done
  [ -s "$WORK/ready" ] || die "the fake API did not start: $(cat "$WORK/log")"
  "$PROOF" http://127.0.0.1:8000/ "$WORK/by-id" || {
    tail -n 30 "$WORK/log" >&2
    return 1
  }
  local pid=$FAKE_PID
  FAKE_PID=
  kill -TERM "$pid"
  wait "$pid" || die "the fake API exited with an error: $(cat "$WORK/log")"
  [ -z "$(loops_in "$WORK")" ] || die "devices were left over"
}

fake_down() {
  [ -z "$FAKE_PID" ] || kill -TERM "$FAKE_PID" 2>/dev/null || true
  [ -z "$FAKE_PID" ] || wait "$FAKE_PID" 2>/dev/null || true
}

if [ "${1:-}" = --inside ]; then
  inside
  exit
fi
command -v go >/dev/null || die "DigitalOcean's clients are built with Go: please install Go 1.25 or newer"
programs_up
program=$CACHE/digitalocean/proof
mkdir -p "${program%/*}"
(cd "$ROOT/test/digitalocean" && nice -n 19 go build -mod=readonly -trimpath -o "$program" .)
FAKE=$TARGET/debug/fake-digitalocean PROOF=$program unshare --net "$(realpath "$0")" --inside
