# Shared by the scripts: throwaway pools, a driver on them, and cleanup on every exit. Source this file.
# shellcheck shell=bash

# shellcheck disable=SC2034 # used by the scripts that source this file
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/wharf
WORK=
DRIVER_PID=
DRIVER_LOG=
SOCKET=

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

need_root() {
  [ "$(id -u)" = 0 ] || die "needs root: it mounts file systems and sets up loop devices"
}

# cargo_tool NAME VERSION FLAG...: prints the path of a program from crates.io, installed on first use outside the checkout.
cargo_tool() {
  local name=$1 version=$2
  shift 2
  local root=$CACHE/$name-$version
  if [ ! -x "$root/bin/$name" ]; then
    printf 'building %s %s (once, a few minutes)\n' "$name" "$version" >&2
    # Outside the checkout, so that its own toolchain and settings apply, not ours.
    (cd / && cargo install --quiet --locked --root "$root" --target-dir "$root/target" "$@" "$name@$version" >&2)
    rm -rf "$root/target"
  fi
  printf '%s\n' "$root/bin/$name"
}

# Creates a private directory. It is removed on every exit, with everything mounted or attached beneath it.
work_up() {
  # The mount table and losetup show resolved paths: resolve ours too, so that they compare equal.
  WORK=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/wharf.XXXXXX")")
  trap work_down EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
}

work_down() {
  local status=$?
  trap - EXIT
  driver_kill
  release_all
  rm -rf --one-file-system "$WORK"
  exit "$status"
}

# Lists mounts beneath $WORK, newest first. Special characters stay escaped as in the mount table.
mounts_in_work() {
  awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | tac
}

# Lists loop devices over files beneath a directory, including deleted files.
loops_in() {
  losetup --list --noheadings --output NAME,BACK-FILE | awk -v dir="$1/" 'index($2, dir) == 1 { print $1 }'
}

release_all() {
  local round target device
  # Several rounds: a mounted volume keeps its image busy, and the image keeps the pool busy.
  for round in 1 2 3 4 5; do
    while read -r target; do umount "$target" 2>/dev/null || true; done < <(mounts_in_work)
    while read -r device; do losetup --detach "$device" 2>/dev/null || true; done < <(loops_in "$WORK")
    [ -n "$(mounts_in_work)$(loops_in "$WORK")" ] || return 0
    sleep "0.$round"
  done
  mounts_in_work | sed 's/^/still mounted: /' >&2
}

# pool_up FS SIZE: creates a pool directory ($POOL) on a new file system in a sparse file.
pool_up() {
  local fs=$1 size=$2
  truncate --size "$size" "$WORK/disk.img"
  case $fs in
    ext4) mkfs.ext4 -q -F "$WORK/disk.img" ;;
    # mkfs.btrfs prints advice on every run.
    xfs | btrfs) "mkfs.$fs" -q -f "$WORK/disk.img" >/dev/null ;;
    *) die "no pool on $fs" ;;
  esac
  mkdir -p "$WORK/disk"
  mount -o loop "$WORK/disk.img" "$WORK/disk"
  POOL=$WORK/disk/pool
  mkdir "$POOL"
}

# Removes the pool, with everything still mounted or attached on it.
pool_down() {
  release_all
  rm -f "$WORK/disk.img"
}

# driver_start PROGRAM ARGUMENT...: starts a driver on $SOCKET and waits until it listens.
driver_start() {
  SOCKET=$WORK/csi.sock
  DRIVER_LOG=$WORK/driver.log
  "$@" --endpoint "unix://$SOCKET" </dev/null >"$DRIVER_LOG" 2>&1 &
  DRIVER_PID=$!
  local i
  for ((i = 0; i < 200; i++)); do
    [ ! -S "$SOCKET" ] || return 0
    kill -0 "$DRIVER_PID" 2>/dev/null || break
    sleep 0.05
  done
  tail -n 50 "$DRIVER_LOG" >&2
  die "the driver did not start listening on $SOCKET"
}

# Sends SIGTERM to the driver and waits; fails if its exit status is not 0.
driver_stop() {
  local pid=$DRIVER_PID status=0
  DRIVER_PID=
  kill -TERM "$pid"
  wait "$pid" || status=$?
  [ "$status" = 0 ] || {
    tail -n 50 "$DRIVER_LOG" >&2
    printf 'the driver exited with status %s\n' "$status" >&2
    return 1
  }
}

driver_kill() {
  [ -n "$DRIVER_PID" ] || return 0
  kill -KILL "$DRIVER_PID" 2>/dev/null || true
  wait "$DRIVER_PID" 2>/dev/null || true
  DRIVER_PID=
}

# Fails, and prints what is left, if loop devices, mounts or pool files remain after all volumes are deleted.
# Retries, because images are purged in the background.
leftovers() {
  local left i
  for ((i = 0; i < 100; i++)); do
    left=$(
      loops_in "$WORK/disk" | sed 's/^/loop device /'
      mounts_in_work | grep -Fxv "$WORK/disk" | sed 's/^/mount /'
      [ ! -d "${POOL:-}" ] || find "$POOL" -mindepth 2 -printf 'in the pool: %P\n'
    ) || true
    [ -n "$left" ] || return 0
    sleep 0.1
  done
  printf '%s\n' "$left" >&2
  return 1
}

# Builds the programs that tests run. The selection (whole workspace, some programs) enables the same features of dependencies as
# the test build does; any other selection would compile everything again.
programs_up() {
  (cd "$ROOT" && cargo build --quiet --workspace --bin wharf --bin scripted-driver --bin test-driver --bin fake-digitalocean \
    --bin driver-template --bin nfs-test-driver --example tmpfs)
}

milliseconds() {
  local now=${EPOCHREALTIME/[.,]/}
  printf '%s' $((now / 1000))
}

# section_write TITLE FILE: replaces this section of bench/RESULTS.md with the file. A new section goes before those of the
# sidecar, which bench/sidecar.sh rewrites from their first heading to the end of the file.
section_write() {
  awk -v title="## $1" -v section="$2" '
    function put() { while ((getline line <section) > 0) print line; print ""; done = 1 }
    /^## / { skip = 0 }
    $0 == title { put(); skip = 1 }
    /^## The sidecar$/ && !done { put() }
    !skip { print }
    END { if (!done) { print ""; put() } }
  ' "$ROOT/bench/RESULTS.md" >"$WORK/results"
  cp "$WORK/results" "$ROOT/bench/RESULTS.md"
}
