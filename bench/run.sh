#!/usr/bin/env bash
# Measures what we promise, as ratios within one run: numbers of one machine mean little on another.
#
#   run.sh            prints
#   run.sh --write    prints, and replaces bench/RESULTS.md
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
# ratio A B: A / B with two decimals.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b == 0) print "-"; else printf "%.2f", a / b }'; }

# The median of three runs in milliseconds; _N_ in an argument becomes the number of the run.
median3() {
  local i begin
  for i in 1 2 3; do
    begin=$(milliseconds)
    "${@//_N_/$i}" >/dev/null
    echo $(($(milliseconds) - begin))
  done | sort -n | sed -n 2p
}

# copies GIB: snapshot, clone and restore of a 10 GiB volume with so much data, against a copy of its image.
copies() {
  local data=$1 id image snapshot copy
  id=$(create "copies-$data" --size 10GiB --fs-type xfs)
  mkdir -p "$WORK/staging"
  csi node stage "$id" --staging-path "$WORK/staging" --fs-type xfs >/dev/null
  fio --name=fill --directory="$WORK/staging" --rw=write --bs=1M --size="${data}G" --direct=1 --ioengine=psync \
    --end_fsync=1 --minimal >/dev/null
  SNAPSHOT_MS=$(median3 csi snapshot create "snap-$data-_N_" --volume "$id")
  snapshot=$(csi --output json snapshot create "snap-$data-1" --volume "$id" | field snapshot_id)
  csi node unstage "$id" --staging-path "$WORK/staging" >/dev/null
  CLONE_MS=$(median3 csi volume create "clone-$data-_N_" --size 10GiB --fs-type xfs --from-volume "$id")
  RESTORE_MS=$(median3 csi volume create "restore-$data-_N_" --size 10GiB --fs-type xfs --from-snapshot "$snapshot")
  image=$POOL/volumes/$id/image
  sync
  copy=$(milliseconds)
  # `cp` would share extents too, if it were let.
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

# job DIRECTORY RW BS: one fio job, answers "IOPS KiB/s".
job() {
  local dir=$1 rw=$2 bs=$3
  fio --name=job --directory="$dir" --filename=fio.data --rw="$rw" --bs="$bs" --size=1G --direct=1 --ioengine=libaio \
    --iodepth=16 --time_based --runtime="$RUNTIME" --ramp_time=1 --group_reporting --minimal |
    awk -F';' '{ print $8 + $49, $7 + $48 }'
}

jobs_on() {
  local dir=$1 rw bs iops bandwidth
  fio --name=fill --directory="$dir" --filename=fio.data --rw=write --bs=1M --size=1G --direct=1 --ioengine=psync \
    --end_fsync=1 --minimal >/dev/null
  while read -r rw bs; do
    read -r iops bandwidth < <(job "$dir" "$rw" "$bs")
    if [ "$bs" = 4k ]; then echo "$iops"; else echo "$bandwidth"; fi
  done <<'END'
randread 4k
randwrite 4k
read 1M
write 1M
END
  rm "$dir/fio.data"
}

throughput() {
  local fs id names=("4k random read, IOPS" "4k random write, IOPS" "1M sequential read, KiB/s" "1M sequential write, KiB/s")
  local pool volume i
  mapfile -t pool < <(jobs_on "$WORK/disk")
  for fs in xfs ext4; do
    id=$(create "fio-$fs" --size 4GiB --fs-type "$fs")
    csi node stage "$id" --staging-path "$WORK/staging" --fs-type "$fs" >/dev/null
    mapfile -t volume < <(jobs_on "$WORK/staging")
    csi node unstage "$id" --staging-path "$WORK/staging" >/dev/null
    for i in 0 1 2 3; do
      row "$fs volume, ${names[i]}" "${volume[i]}" "${pool[i]}" "$(ratio "${volume[i]}" "${pool[i]}")"
    done
  done
}

# many: so many volumes up, all at once in use, and down again.
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
  row "$VOLUMES volumes: create, stage, publish (ms in all, each)" "$((up - begin))" "$(((up - begin) / VOLUMES))" -
  row "$VOLUMES volumes: unpublish, unstage, delete (ms in all, each)" "$((down - up))" "$(((down - up) / VOLUMES))" -
}

memory() { awk '/^VmRSS:/ { print $2 }' "/proc/$DRIVER_PID/status"; }

results() {
  cat <<END
# Results

One run of \`make bench\` on $(nproc) processors, Linux $(uname -r), $(date --utc +%F). An xfs pool in a sparse file.
Ratios compare within the run; times include starting the client, about $START_MS ms.

| what | wharf | against | ratio |
|---|---|---|---|
END
  printf '%s\n' "${rows[@]}"
}

say "Building with the dist profile"
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf)
work_up
pool_up xfs 60G
driver_start "$wharf" driver local --node-id bench --pool "$POOL" --overcommit 100
sleep 1
IDLE_KIB=$(memory)
START_MS=$(median3 csi identity probe)

say
printf '  %-58s %14s %14s %10s\n' what wharf against ratio >&2
row "idle driver, RSS (KiB, at most 10240)" "$IDLE_KIB" 10240 "$(ratio "$IDLE_KIB" 10240)"
row "create a volume of 10 GiB (ms)" "$(median3 csi volume create "new-_N_" --size 10GiB)" - -
copies 1
one=("$SNAPSHOT_MS" "$CLONE_MS" "$RESTORE_MS")
row "snapshot of 1 GiB in 10, mounted (ms; against cp)" "$SNAPSHOT_MS" "$COPY_MS" "$(ratio "$SNAPSHOT_MS" "$COPY_MS")"
row "clone of 1 GiB in 10 (ms; against cp)" "$CLONE_MS" "$COPY_MS" "$(ratio "$CLONE_MS" "$COPY_MS")"
row "restore of 1 GiB in 10 (ms; against cp)" "$RESTORE_MS" "$COPY_MS" "$(ratio "$RESTORE_MS" "$COPY_MS")"
copies 4
row "snapshot of 4 GiB in 10, mounted (ms; against that of 1)" "$SNAPSHOT_MS" "${one[0]}" "$(ratio "$SNAPSHOT_MS" "${one[0]}")"
row "clone of 4 GiB in 10 (ms; against that of 1)" "$CLONE_MS" "${one[1]}" "$(ratio "$CLONE_MS" "${one[1]}")"
row "restore of 4 GiB in 10 (ms; against that of 1)" "$RESTORE_MS" "${one[2]}" "$(ratio "$RESTORE_MS" "${one[2]}")"
row "plain copy of 4 GiB in 10 (ms; against the clone)" "$COPY_MS" "$CLONE_MS" "$(ratio "$COPY_MS" "$CLONE_MS")"
throughput
many
row "driver after all that, RSS (KiB)" "$(memory)" "$IDLE_KIB" "$(ratio "$(memory)" "$IDLE_KIB")"
delete_all
driver_stop
[ "${1:-}" != --write ] || results >"$ROOT/bench/RESULTS.md"
