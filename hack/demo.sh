#!/usr/bin/env bash
# Takes a volume through its whole lifecycle on a throwaway pool, step by step, and prints the time of each step: the CSI calls
# that Kubernetes makes to `wharf driver local`. An unexpected result ends the demo with an error. Nothing is left behind.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
need_root

wharf=$TARGET/release/wharf

csi() { "$wharf" csi --endpoint "unix://$SOCKET" "$@"; }
# Prints a field of a JSON object; `nested` prints the first match at any depth.
field() { sed -nE "s/^  \"$1\": \"?([^\",]*)\"?,?\$/\\1/p" <<<"$2"; }
nested() { sed -nE "s/^ +\"$1\": \"?([^\",]*)\"?,?\$/\\1/p" <<<"$2" | head -n 1; }
line() { printf '  %-52s %8s%s\n' "$1" "$2" "${3:+  $3}"; }

# step WHAT COMMAND...: runs the command, stores its output in $OUT, prints the duration.
step() {
  local what=$1 begin end
  shift
  begin=$(milliseconds)
  # Not in a subshell: the driver is a child of this shell, and only its parent can wait for it.
  "$@" >"$WORK/out" 2>&1 || {
    line "$what" failed ""
    cat "$WORK/out" >&2
    tail -n 20 "$DRIVER_LOG" >&2
    exit 1
  }
  end=$(milliseconds)
  OUT=$(<"$WORK/out")
  line "$what" "$((end - begin)) ms" ""
}

expect() {
  local what=$1
  shift
  "$@" || die "check failed: $what"
  line "  $what" "" yes
}

write_file() { head -c "$2" /dev/urandom >"$1" && sync "$1"; }
sum() { sha256sum <"$1"; }
same() { [ "$(sum "$1")" = "$2" ]; }
size() { df --output=size --block-size=1 "$1" | tail -n 1; }
larger() { [ "$(size "$1")" -gt "$2" ]; }
human() { numfmt --to=iec-i --suffix=B --format=%.1f "$1"; }

# mounted ID NAME: stages and publishes a volume at $WORK/NAME.
mounted() {
  mkdir -p "$WORK/staging/$2"
  step "  stage" csi node stage "$1" --staging-path "$WORK/staging/$2" --fs-type xfs
  step "  publish" csi node publish "$1" --staging-path "$WORK/staging/$2" --target-path "$WORK/$2" --fs-type xfs
}

unmounted() {
  step "unpublish $2" csi node unpublish "$1" --target-path "$WORK/$2"
  step "  unstage" csi node unstage "$1" --staging-path "$WORK/staging/$2"
}

echo "Building wharf"
(cd "$ROOT" && cargo build --quiet --release --package wharf)
work_up
started=$(milliseconds)
pool_up xfs 20G
echo "A pool on a fresh xfs file system (20 GiB, sparse), and a driver on it"
driver_start "$wharf" driver local --create-pool --node-id demo --pool "$POOL"
echo

step "create a volume of 2 GiB, xfs" csi --output json volume create data --size 2GiB --fs-type xfs
data=$(field volume_id "$OUT")
mounted "$data" data
step "write 256 MiB" write_file "$WORK/data/file" 256M
original=$(sum "$WORK/data/file")

step "snapshot, while it is mounted" csi --output json snapshot create before --volume "$data"
snapshot=$(field snapshot_id "$OUT")
expect "ready to use at once" [ "$(field ready_to_use "$OUT")" = true ]
step "overwrite the file" write_file "$WORK/data/file" 16M
changed=$(sum "$WORK/data/file")

step "restore the snapshot into a volume of 3 GiB" \
  csi --output json volume create restored --size 3GiB --fs-type xfs --from-snapshot "$snapshot"
restored=$(field volume_id "$OUT")
mounted "$restored" restored
expect "the restored volume has the content of the snapshot" same "$WORK/restored/file" "$original"

step "clone the volume" csi --output json volume create clone --size 2GiB --fs-type xfs --from-volume "$data"
clone=$(field volume_id "$OUT")
mounted "$clone" clone
expect "mounted together with its source, with the same content" same "$WORK/clone/file" "$changed"

before=$(size "$WORK/data")
step "expand to 4 GiB" csi volume expand "$data" --size 4GiB --fs-type xfs
step "  grow the mounted file system" \
  csi node expand "$data" --path "$WORK/data" --staging-path "$WORK/staging/data" --size 4GiB --fs-type xfs
expect "df: $(human "$before"), now $(human "$(size "$WORK/data")")" larger "$WORK/data" $((3 << 30))
expect "the file is unchanged" same "$WORK/data/file" "$changed"

step "stats" csi --output json node stats "$data" --path "$WORK/data" --staging-path "$WORK/staging/data"
expect "bytes: $(human "$(nested used "$OUT")") of $(human "$(nested total "$OUT")") used" \
  [ "$(nested total "$OUT")" -gt $((3 << 30)) ]
step "health" csi volume health "$data"
expect "healthy" grep -q HEALTHY <<<"$OUT"

for name in data restored clone; do unmounted "${!name}" "$name"; done
for name in data restored clone; do step "delete $name" csi volume delete "${!name}"; done
step "delete the snapshot" csi snapshot delete "$snapshot"
rmdir "$WORK"/staging/* "$WORK/staging"
expect "nothing is left: no mount, no loop device, no file" leftovers
step "stop the driver" driver_stop
echo
echo "Done in $(($(milliseconds) - started)) ms"
