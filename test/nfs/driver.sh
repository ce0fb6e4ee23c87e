# The driver on each node, and calls to it. Sourced by the parts that need it.
# shellcheck shell=bash
declare -A driver_pid=()
# The driver's socket of a node. Some parts need it in another directory, $SOCKETS.
socket() { printf '%s/%s.sock\n' "${SOCKETS:-/run}" "$1"; }

# driver_up NODE ARGUMENT...: starts the driver of a node, which is controller and node service in one process.
driver_up() {
  local node=$1
  shift
  rm -f "$(socket "$node")"
  RUST_LOG=${RUST_LOG:-info} nsenter --net="/run/netns/$node" "$WHARF" driver nfs --endpoint "unix://$(socket "$node")" \
    --nodeid "$node" "$@" </dev/null >>"/run/$node.log" 2>&1 &
  driver_pid[$node]=$!
  eventually 60 test -S "$(socket "$node")"
}
driver_down() {
  kill -TERM "${driver_pid[$1]}"
  local status=0
  wait "${driver_pid[$1]}" || status=$?
  [ "$status" = 0 ] || tail -n 20 "/run/$1.log"
  return "$status"
}
driver_kill() {
  kill -KILL "${driver_pid[$1]}"
  wait "${driver_pid[$1]}" 2>/dev/null || true
}
# No worker outlives its driver.
no_workers() { none pgrep -af nfs-worker; }

# csi NODE ARGUMENT...: one RPC with a deadline of $DEADLINE seconds, after which csi itself fails. A call that takes longer than that
# hangs.
csi() {
  local node=$1
  shift
  within $((DEADLINE + 10)) "$WHARF" csi --endpoint "unix://$(socket "$node")" --timeout "${DEADLINE}s" "$@"
}
DEADLINE=60

# retry COMMAND...: as a sidecar does, until the call succeeds; at most $RETRY seconds. Copies answer ABORTED while they run.
RETRY=120
retry() {
  local end=$((SECONDS + RETRY)) out
  until out=$("$@" 2>&1); do
    # What no repetition changes.
    case $out in INVALID_ARGUMENT* | UNIMPLEMENTED* | ALREADY_EXISTS*) end=0 ;; esac
    [ "$SECONDS" -lt "$end" ] || {
      printf '%s\n' "$out"
      return 1
    }
    sleep 0.3
  done
  printf '%s\n' "$out"
}

# The class of the next volumes.
SHARE=/xfs VERSION=4.2
class() { printf '%s\n' --access-mode rwx --mount-option "nfsvers=$VERSION" --parameter "server=$NFS_SERVER" --parameter "share=$SHARE"; }

# create NODE NAME ARGUMENT...: creates a volume; its handle is then `handle NAME`, its directory on the server `directory NAME`.
create() {
  local node=$1 name=$2 arguments
  shift 2
  mapfile -t arguments < <(class)
  retry csi "$node" --output json volume create "$name" --size 1GiB "${arguments[@]}" "$@" >"/run/volume-$name.json" ||
    { cat "/run/volume-$name.json" && : >"/run/volume-$name.json" && return 1; }
  [ -n "$(handle "$name")" ]
}
# A file that an earlier failure left empty has no fields, and so no directory: nothing is compared with it by mistake.
json() { [ ! -s "$1" ] || python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))
for key in sys.argv[2:]: value = value[key]
print(value if not isinstance(value, dict) else "\n".join(f"{k}={v}" for k, v in value.items()))' "$@"; }
handle() { json "/run/volume-$1.json" volume_id; }
context() { json "/run/volume-$1.json" volume_context | sed 's/^/--context\n/'; }
# The key subDir may be in any case.
directory() { json "/run/volume-$1.json" volume_context | awk -F= 'tolower($1) == "share" { share = $2 } tolower($1) == "subdir" { dir = $2 } END { print dir ? "/srv" share "/" dir : "/nonexistent" }'; }

# publish NODE NAME: mounts the volume at `target NODE NAME`.
target() { printf '/run/pods/%s/%s\n' "$1" "$2"; }
publish() {
  local node=$1 name=$2 arguments
  shift 2
  mapfile -t arguments < <(context "$name")
  mkdir -p "/run/pods/$node"
  retry csi "$node" node publish "$(handle "$name")" --target-path "$(target "$node" "$name")" --access-mode rwx \
    --mount-option "nfsvers=$VERSION" "${arguments[@]}" "$@"
}
unpublish() {
  retry csi "$1" node unpublish "$(handle "$2")" --target-path "$(target "$1" "$2")" && [ ! -e "$(target "$1" "$2")" ]
}
delete() { retry csi "$1" volume delete "$(handle "$2")"; }
# snapshot NODE NAME VOLUME ARGUMENT...: its handle is then `snapshot_handle NAME`.
snapshot() {
  local node=$1 name=$2 volume=$3
  shift 3
  retry csi "$node" --output json snapshot create "$name" --volume "$(handle "$volume")" "$@" >"/run/snapshot-$name.json" ||
    { cat "/run/snapshot-$name.json" && : >"/run/snapshot-$name.json" && return 1; }
}
snapshot_handle() { json "/run/snapshot-$1.json" snapshot_id; }

# Everything that a copy must preserve, as text: types, modes, owners, sizes, times, links, hard links, data.
picture() {
  (
    cd "$1"
    find . -mindepth 1 \( -type l -printf '%P %y %m %U:%G -> %l\n' -o -type d -printf '%P %y %m %U:%G %T@\n' -o \
      -printf '%P %y %m %U:%G %s %n %T@\n' \) | sort
    find . -type f -print0 | sort -z | xargs -0r sha256sum
    find . -type f -links +1 -printf '%i %P\n' | sort -k2 | awk '{ if (!($1 in first)) first[$1] = $2; print first[$1], $2 }'
  )
}
# A tree with everything that a file system can contain, for `picture`.
fill() {
  (
    cd "$1"
    mkdir -p plain/deep/deeper restricted
    for i in {1..10}; do echo "file $i" >"plain/$i"; done
    head -c 1M /dev/urandom >plain/deep/random
    truncate --size 8M holes && printf end | dd of=holes bs=1 seek=$((4 << 20)) conv=notrunc status=none
    ln plain/1 hard-link
    ln -s plain/1 link && ln -s /etc/shadow outside && ln -s ../../.. above
    mkfifo fifo
    echo secret >restricted/file
    chown 1234:5678 restricted restricted/file && chmod 4750 restricted/file && chmod 2700 restricted
    touch -d '2001-02-03 04:05:06.789' plain/2 plain/deep
    printf 'n\nl' >$'name\nwith \t odd "characters'
    sync -f .
  )
}

# What must never change: beside, above and within the shares.
canaries() { (cd /srv && find . -path ./xfs/.wharf -prune -o -path ./ext4/.wharf -prune -o -name 'canary*' -printf '%p %i %m %s %T@\n' | sort); }
plant_canaries() {
  local place
  for place in /srv /srv/xfs /srv/ext4; do
    echo precious >"$place/canary"
    mkdir -p "$place/canary-directory/deep" && echo precious >"$place/canary-directory/deep/canary"
  done
  canaries >/run/canaries
}
canaries_live() { canaries | diff /run/canaries -; }
# The share contains no volume, staging directory, trash or job any more.
share_is_clean() {
  (
    cd "/srv$1"
    find . -mindepth 1 -maxdepth 1 ! -name .wharf ! -name lost+found ! -name 'canary*' -printf 'left: %p\n'
    cd .wharf 2>/dev/null || exit 0
    # A deleted object leaves a record without content until the grace period ends.
    for part in volumes snapshots jobs; do
      [ ! -d "$part" ] || find "$part" -name '*.json' -exec grep -LZE '"record": *null' {} + | xargs -0r head -v -c 1000
    done
    for part in staging content trash; do [ ! -d "$part" ] || find "$part" -mindepth 1 -printf 'left: %p\n'; done
  ) | head -n 20 >/run/left
  [ ! -s /run/left ] || { cat /run/left && false; }
}
