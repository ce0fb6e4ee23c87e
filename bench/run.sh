#!/usr/bin/env bash
# Measures the local driver. Results are ratios within one run: absolute numbers of one machine mean little on another.
#
#   run.sh            print the results
#   run.sh --write    print the results and update their section of bench/RESULTS.md
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root

RUNTIME=${RUNTIME:-5}   # seconds for each fio job
VOLUMES=${VOLUMES:-100}
wharf=$TARGET/dist/wharf
rows=()

csi() { "$wharf" csi --endpoint "unix://$SOCKET" --timeout 300s "$@"; }
field() { sed -nE "s/^  \"$1\": \"?([^\",]*)\"?,?\$/\\1/p"; }
create() { csi --output json volume create "$@" | field volume_id; }

say() { printf '%s\n' "$*" >&2; }
row() {
  rows+=("| $1 | $2 | $3 | $4 |")
  printf '  %-58s %14s %14s %10s\n' "$1" "$2" "$3" "$4" >&2
}
# ratio A B: prints A / B, with an additional digit if it is small.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) print "-"; else printf (a < b / 10 ? "%.3f" : "%.2f"), a / b }'; }

# Prints the median of seven runs in milliseconds; _N_ in an argument is replaced by the number of the run.
median() {
  local i begin
  for i in 1 2 3 4 5 6 7; do
    begin=${EPOCHREALTIME/[.,]/}
    "${@//_N_/$i}" >/dev/null
    echo $((${EPOCHREALTIME/[.,]/} - begin))
  done | sort -n | awk 'NR == 4 { printf "%.1f", $1 / 1000 }'
}

# copies GIB: measures snapshot, clone and restore of a 10 GiB volume with that much data, and a copy of its image.
copies() {
  local data=$1 id image snapshot copy
  id=$(create "copies-$data" --size 10GiB --fs-type xfs)
  mkdir -p "$WORK/staging"
  csi node stage "$id" --staging-path "$WORK/staging" --fs-type xfs >/dev/null
  fio --name=fill --directory="$WORK/staging" --rw=write --bs=1M --size="${data}G" --direct=1 --ioengine=psync \
    --end_fsync=1 --minimal >/dev/null
  SNAPSHOT_MS=$(median csi snapshot create "snap-$data-_N_" --volume "$id")
  snapshot=$(csi --output json snapshot create "snap-$data-1" --volume "$id" | field snapshot_id)
  csi node unstage "$id" --staging-path "$WORK/staging" >/dev/null
  CLONE_MS=$(median csi volume create "clone-$data-_N_" --size 10GiB --fs-type xfs --from-volume "$id")
  RESTORE_MS=$(median csi volume create "restore-$data-_N_" --size 10GiB --fs-type xfs --from-snapshot "$snapshot")
  image=$POOL/volumes/$id/image
  sync
  copy=$(milliseconds)
  # By default `cp` would share extents, too.
  cp --sparse=always --reflink=never "$image" "$WORK/disk/copy"
  sync "$WORK/disk/copy"
  COPY_MS=$(($(milliseconds) - copy))
  rm "$WORK/disk/copy"
}

delete_all() {
  local id
  for id in $(csi --output json snapshot list | sed -nE 's/.*"snapshot_id": "([^"]+)".*/\1/p'); do
    csi snapshot delete "$id" >/dev/null
  done
  for id in $(csi --output json volume list | sed -nE 's/^ *"volume_id": "(vol-[^"]+)".*/\1/p' | sort -u); do
    csi volume delete "$id" >/dev/null
  done
  leftovers
}

# job DIRECTORY RW BS: runs one fio job and prints its operations per second.
job() {
  local dir=$1 rw=$2 bs=$3
  fio --name=job --directory="$dir" --filename=fio.data --rw="$rw" --bs="$bs" --size=1G --direct=1 --ioengine=libaio \
    --iodepth=16 --time_based --runtime="$RUNTIME" --ramp_time=1 --minimal </dev/null |
    awk -F';' '{ print $8 + $49 }'
}

# Runs the same job on the pool's own file system and on two volumes, one right after the other.
throughput() {
  local fs id rw bs name i pool volume dirs=("$WORK/disk") types=(xfs ext4) ids=()
  for fs in "${types[@]}"; do
    id=$(create "fio-$fs" --size 4GiB --fs-type "$fs")
    mkdir -p "$WORK/fio/$fs"
    csi node stage "$id" --staging-path "$WORK/fio/$fs" --fs-type "$fs" >/dev/null
    ids+=("$id") dirs+=("$WORK/fio/$fs")
  done
  for i in "${dirs[@]}"; do
    fio --name=fill --directory="$i" --filename=fio.data --rw=write --bs=1M --size=1G --direct=1 --ioengine=psync \
      --end_fsync=1 --minimal >/dev/null
  done
  while read -r rw bs name; do
    pool=$(job "${dirs[0]}" "$rw" "$bs")
    for i in 0 1; do
      volume=$(job "${dirs[i + 1]}" "$rw" "$bs")
      row "${types[i]} volume, $name" "$volume" "$pool" "$(ratio "$volume" "$pool")"
    done
  done <<'END'
randread 4k 4k random read (IOPS)
randwrite 4k 4k random write (IOPS)
read 1M 1M sequential read (per second)
write 1M 1M sequential write (per second)
END
  rm "$WORK/disk/fio.data"
  for i in 0 1; do csi node unstage "${ids[i]}" --staging-path "${dirs[i + 1]}" >/dev/null; done
}

# many: creates and publishes VOLUMES volumes, then unpublishes and deletes them.
many() {
  local i id begin up down ids=()
  begin=$(milliseconds)
  for ((i = 0; i < VOLUMES; i++)); do
    id=$(create "many-$i" --size 64MiB --fs-type ext4)
    mkdir -p "$WORK/many/$i"
    csi node stage "$id" --staging-path "$WORK/many/$i" --fs-type ext4 >/dev/null
    csi node publish "$id" --staging-path "$WORK/many/$i" --target-path "$WORK/many/$i.target" --fs-type ext4 >/dev/null
    ids+=("$id")
  done
  up=$(milliseconds)
  for ((i = 0; i < VOLUMES; i++)); do
    csi node unpublish "${ids[i]}" --target-path "$WORK/many/$i.target" >/dev/null
    csi node unstage "${ids[i]}" --staging-path "$WORK/many/$i" >/dev/null
    csi volume delete "${ids[i]}" >/dev/null
  done
  down=$(milliseconds)
  row "$VOLUMES volumes: create, stage, publish (ms in total, per volume)" "$((up - begin))" "$(((up - begin) / VOLUMES))" -
  row "$VOLUMES volumes: unpublish, unstage, delete (ms in total, per volume)" "$((down - up))" "$(((down - up) / VOLUMES))" -
}

memory() { awk '/^VmRSS:/ { print $2 }' "/proc/$DRIVER_PID/status"; }

results() {
  cat <<END
# Results

One run of \`bench/run.sh\` on $(nproc) processors, Linux $(uname -r), $(date --utc +%F). The pool is an xfs file system in a
sparse file. Only the ratios apply to other machines. Times are medians of seven runs and include starting the client, about
$START_MS ms. fio: direct I/O, libaio, depth 16, $RUNTIME s for each job.

| measurement | wharf | compared with | ratio |
|---|---|---|---|
END
  printf '%s\n' "${rows[@]}"
}

say "Building with the dist profile"
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf)
work_up
pool_up xfs 60G
driver_start "$wharf" driver local --create-pool --node-id bench --pool "$POOL" --overcommit 100
sleep 1
IDLE_KIB=$(memory)
START_MS=$(median csi identity probe)

say
printf '  %-58s %14s %14s %10s\n' measurement wharf 'compared with' ratio >&2
row "idle driver, RSS (KiB, at most 10240)" "$IDLE_KIB" 10240 "$(ratio "$IDLE_KIB" 10240)"
row "create a volume of 10 GiB (ms)" "$(median csi volume create "new-_N_" --size 10GiB)" - -
copies 1
one=("$SNAPSHOT_MS" "$CLONE_MS" "$RESTORE_MS")
row "snapshot of a mounted 10 GiB volume with 1 GiB of data (ms; compared with cp)" "$SNAPSHOT_MS" "$COPY_MS" "$(ratio "$SNAPSHOT_MS" "$COPY_MS")"
row "clone of a 10 GiB volume with 1 GiB of data (ms; compared with cp)" "$CLONE_MS" "$COPY_MS" "$(ratio "$CLONE_MS" "$COPY_MS")"
row "restore of a 10 GiB volume with 1 GiB of data (ms; compared with cp)" "$RESTORE_MS" "$COPY_MS" "$(ratio "$RESTORE_MS" "$COPY_MS")"
copies 4
row "snapshot of a mounted 10 GiB volume with 4 GiB of data (ms; compared with 1 GiB)" "$SNAPSHOT_MS" "${one[0]}" "$(ratio "$SNAPSHOT_MS" "${one[0]}")"
row "clone of a 10 GiB volume with 4 GiB of data (ms; compared with 1 GiB)" "$CLONE_MS" "${one[1]}" "$(ratio "$CLONE_MS" "${one[1]}")"
row "restore of a 10 GiB volume with 4 GiB of data (ms; compared with 1 GiB)" "$RESTORE_MS" "${one[2]}" "$(ratio "$RESTORE_MS" "${one[2]}")"
row "plain copy of a 10 GiB volume with 4 GiB of data (ms; compared with the clone)" "$COPY_MS" "$CLONE_MS" "$(ratio "$COPY_MS" "$CLONE_MS")"
throughput
many
row "driver after the benchmark, RSS (KiB)" "$(memory)" "$IDLE_KIB" "$(ratio "$(memory)" "$IDLE_KIB")"
delete_all
driver_stop
if [ "${1:-}" = --write ]; then
  # Keep the sections of the other benchmarks.
  { results && printf '\n' && sed -n '/^## /,$p' "$ROOT/bench/RESULTS.md"; } >"$WORK/results"
  cp "$WORK/results" "$ROOT/bench/RESULTS.md"
fi
