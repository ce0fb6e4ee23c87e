# Measures the driver on the server in the virtual machine, for bench/nfs.sh. Sourced by guest.sh. Prints lines of
# `row MEASUREMENT | wharf | compared with`. Only ratios within one run mean anything: the machine is emulated.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

ms() {
  local from=${EPOCHREALTIME/[.,]/}
  "$@" >/dev/null 2>&1 || echo "failed: $*" >&2
  echo $(((${EPOCHREALTIME/[.,]/} - from) / 1000))
}
row() { printf 'row %s | %s | %s\n' "$1" "$2" "$3"; }

measure() {
  SHARE=/xfs VERSION=4.2 DEADLINE=300 RETRY=600
  driver_up node-a
  mkdir -p /mnt/share /mnt/call
  in_ns node-a python3 "$HERE/call.py" mount nfs "$NFS_SERVER:/xfs" /mnt/share "addr=$NFS_SERVER,vers=4.2"
  # The first call starts the worker, and the client's start is in every figure.
  create node-a warm-up
  row "the client alone: identity probe (ms)" "$(ms csi node-a identity probe)" -

  create node-a small
  local i directory
  directory=$(directory small)
  for ((i = 0; i < 1000; i++)); do head -c 4096 /dev/urandom >"$directory/$i"; done
  row "clone of 1,000 files of 4 KiB (ms; compared with cp -a)" "$(ms create node-a small-clone --from-volume "$(handle small)")" \
    "$(ms cp -a /mnt/share/small /mnt/share/small-cp)"
  row "snapshot of 1,000 files of 4 KiB (ms; compared with tar -cz)" "$(ms snapshot node-a small-snap small)" \
    "$(ms tar -C /mnt/share/small -czf /mnt/share/small.tar.gz .)"
  create node-a big
  head -c 256M /dev/urandom >"$(directory big)/file"
  create node-a huge
  head -c 1G /dev/urandom >"$(directory huge)/file"
  row "clone of one file of 1 GiB (ms; compared with cp -a)" "$(ms create node-a huge-clone --from-volume "$(handle huge)")" \
    "$(ms cp -a /mnt/share/huge /mnt/share/huge-cp)"
  row "clone of one file of 1 GiB (ms; compared with cp -a --reflink=never)" "$(ms create node-a huge-clone2 --from-volume "$(handle huge)")" \
    "$(ms cp -a --reflink=never /mnt/share/huge /mnt/share/huge-copy)"
  row "snapshot of one file of 256 MiB (ms; compared with tar -cz)" "$(ms snapshot node-a big-snap big)" \
    "$(ms tar -C /mnt/share/big -czf /mnt/share/big.tar.gz .)"

  row "create and delete 100 volumes (ms; compared with mount, mkdir, rmdir, umount each)" "$(ms volumes 100)" "$(ms mounts 100)"

  publish node-a big
  local volume
  volume=$(target node-a big)
  row "write 64 MiB with fsync (ms; compared with the plain mount)" "$(ms dd if=/dev/zero "of=$volume/io" bs=1M count=64 conv=fsync)" \
    "$(ms dd if=/dev/zero of=/mnt/share/io bs=1M count=64 conv=fsync)"
  echo 3 >/proc/sys/vm/drop_caches
  row "read 64 MiB (ms; compared with the plain mount)" "$(ms dd "if=$volume/io" of=/dev/null bs=1M)" "$(ms dd if=/mnt/share/io of=/dev/null bs=1M)"
  unpublish node-a big
  umount /mnt/share
  driver_down node-a
}
volumes() {
  local i
  for ((i = 0; i < $1; i++)); do create node-a "many-$i"; done
  for ((i = 0; i < $1; i++)); do delete node-a "many-$i"; done
}
# What csi-driver-nfs does in each call, without its own time; and a start of the client for each, to be fair.
mounts() {
  local i act
  for act in mkdir rmdir; do
    for ((i = 0; i < $1; i++)); do
      csi node-a identity probe
      in_ns node-a mount.nfs -o vers=4.2 "$NFS_SERVER:/xfs" /mnt/call && "$act" "/mnt/call/each-$i" && umount /mnt/call
    done
  done
}
