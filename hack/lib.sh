# Shared by the scripts: throwaway pools, a driver on them, and cleaning up whatever happens. To be sourced.
# shellcheck shell=bash

# shellcheck disable=SC2034 # those who source this use them
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

# A private directory that is gone when the script ends, however it ends, with everything in and on it.
work_up() {
  # A mount table or losetup shows paths without symlinks; so that they can be compared, so are ours.
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

# Mounts beneath $WORK, newest first; a path's odd characters stay escaped as in the mount table.
mounts_in_work() {
  awk -v work="$WORK/" 'index($5, work) == 1 { print $5 }' /proc/self/mountinfo | tac
}

# Loop devices over files beneath a directory, deleted files included.
loops_in() {
  losetup --list --noheadings --output NAME,BACK-FILE | awk -v dir="$1/" 'index($2, dir) == 1 { print $1 }'
}

release_all() {
  local round target device
  # Several rounds: a mount on a volume's device keeps the volume's image busy, and that keeps the pool busy.
  for round in 1 2 3 4 5; do
    while read -r target; do umount "$target" 2>/dev/null || true; done < <(mounts_in_work)
    while read -r device; do losetup --detach "$device" 2>/dev/null || true; done < <(loops_in "$WORK")
    [ -n "$(mounts_in_work)$(loops_in "$WORK")" ] || return 0
    sleep "0.$round"
  done
  mounts_in_work | sed 's/^/still mounted: /' >&2
}

# pool_up FS SIZE: a pool directory ($POOL) on a file system of its own, in a sparse file.
pool_up() {
  local fs=$1 size=$2
  truncate --size "$size" "$WORK/disk.img"
  case $fs in
    ext4) mkfs.ext4 -q -F "$WORK/disk.img" ;;
    # Whoever reads this has read the advice that mkfs.btrfs gives each time.
    xfs | btrfs) "mkfs.$fs" -q -f "$WORK/disk.img" >/dev/null ;;
    *) die "no pool on $fs" ;;
  esac
  mkdir -p "$WORK/disk"
  mount -o loop "$WORK/disk.img" "$WORK/disk"
  POOL=$WORK/disk/pool
  mkdir "$POOL"
}

# With whatever is still mounted or attached on it.
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
  die "the driver does not listen on $SOCKET"
}

# Asks it to stop and waits; fails if it does not end well.
driver_stop() {
  local pid=$DRIVER_PID status=0
  DRIVER_PID=
  kill -TERM "$pid"
  wait "$pid" || status=$?
  [ "$status" = 0 ] || {
    tail -n 50 "$DRIVER_LOG" >&2
    printf 'the driver ended with status %s\n' "$status" >&2
    return 1
  }
}

driver_kill() {
  [ -n "$DRIVER_PID" ] || return 0
  kill -KILL "$DRIVER_PID" 2>/dev/null || true
  wait "$DRIVER_PID" 2>/dev/null || true
  DRIVER_PID=
}

# What a driver that has nothing to keep must not leave behind; prints it and fails if there is any.
# Images are purged in the background, so they get a moment.
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

# Builds the programs that tests run. Of the whole workspace and with an example, which needs what tests need: any other choice
# has other features of the crates below, and everything would be compiled once more.
programs_up() {
  (cd "$ROOT" && cargo build --quiet --workspace --bin wharf --bin scripted-driver --bin test-driver --example tmpfs)
}

milliseconds() {
  local now=${EPOCHREALTIME/[.,]/}
  printf '%s' $((now / 1000))
}

# section_write TITLE FILE: replaces this section of bench/RESULTS.md by the file. A new one goes before the sidecar's, which
# are written anew from their head to the end.
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
