#!/usr/bin/env bash
# Runs in the virtual machine (see vm.sh): expands an ext4 volume while it is mounted and written to. The kernel requires
# CAP_SYS_RESOURCE in the initial user namespace for that, which containers and test machines may lack.
#
#   ext4-online.sh WHARF   WHARF is the binary to test; /dev/vda becomes the pool
set -euo pipefail
wharf=$1
passed=0
check() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
    echo "ok      $name"
  else
    echo "FAILED  $name"
    echo "ext4-online: $passed passed, 1 failed"
    tail -n 30 /run/driver.log
    exit 1
  fi
}
csi() { "$wharf" csi --endpoint unix:///run/csi.sock --timeout 120s "$@"; }
bytes() { df --output=size --block-size=1 /run/target | tail -n 1; }
same() { [ "$1" = "$2" ]; }
between() { [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]; }
listening() {
  local i
  for ((i = 0; i < 300; i++)); do
    [ ! -S /run/csi.sock ] || return 0
    sleep 0.1
  done
  return 1
}
field() { sed -nE "s/^  \"$1\": \"?([^\",]*)\"?,?\$/\\1/p"; }
no_loops() { [ -z "$(losetup --list --noheadings)" ]; }

modprobe loop
mkfs.xfs -q -f /dev/vda
mkdir -p /run/pool /run/staging
mount /dev/vda /run/pool
"$wharf" driver local --create-pool --endpoint unix:///run/csi.sock --node-id vm --pool /run/pool >/run/driver.log 2>&1 </dev/null &
driver=$!
check "driver listens" listening

volume=$(csi --output json volume create online --size 200MiB --fs-type ext4 | field volume_id)
check "create an ext4 volume of 200 MiB" test -n "$volume"
check "stage" csi node stage "$volume" --staging-path /run/staging --fs-type ext4
check "publish" csi node publish "$volume" --staging-path /run/staging --target-path /run/target --fs-type ext4
head -c 64M /dev/urandom >/run/target/data
sum=$(sha256sum </run/target/data)
before=$(bytes)
check "df before: about 200 MiB" between "$before" $((150 << 20)) $((200 << 20))

# A writer runs during the expansion and must not be disturbed.
(while :; do echo tick && sleep 0.05; done >>/run/target/ticks) &
writer=$!
check "controller expands to 1 GiB" csi volume expand "$volume" --size 1GiB --fs-type ext4
check "node expands while it is mounted" \
  csi node expand "$volume" --path /run/target --staging-path /run/staging --size 1GiB --fs-type ext4
check "df after: about 1 GiB" between "$(bytes)" $((900 << 20)) $((1 << 30))
check "the writer still runs" kill -0 "$writer"
kill "$writer"
wait "$writer" || true
check "data is unchanged" same "$sum" "$(sha256sum </run/target/data)"
check "600 MiB more fit" dd if=/dev/zero of=/run/target/more bs=1M count=600 conv=fsync status=none

check "unpublish" csi node unpublish "$volume" --target-path /run/target
check "unstage" csi node unstage "$volume" --staging-path /run/staging
check "stage again: fsck and mount find a sound file system" \
  csi node stage "$volume" --staging-path /run/staging --fs-type ext4
check "data is still unchanged" same "$sum" "$(sha256sum </run/staging/data)"
check "unstage again" csi node unstage "$volume" --staging-path /run/staging
check "delete" csi volume delete "$volume"
check "no loop device is left" no_loops
kill -TERM "$driver"
check "driver exits with status 0" wait "$driver"
echo "ext4-online: $passed passed, 0 failed"
