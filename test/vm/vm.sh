#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel, for features that the kernel of a test machine may lack or
# forbid. The guest sees this machine's files read-only, under an overlay that is discarded, so every program that is
# built or installed here is available. KVM is not needed: with plain emulation the machine boots in about ten seconds.
#
#   vm.sh COMMAND...   runs the command as root, with two empty disks (/dev/vda, /dev/vdb), and passes on its output and
#                      exit status. MEMORY is the machine's memory in MiB, DISK the size of each disk (default 2048 and 2G)
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root

kernel=$CACHE/vm/kernel
# Modules that the guest needs to mount this machine's files; it loads all others itself.
modules=(virtio_pci virtio_blk 9pnet_virtio 9p overlay)

fetch_kernel() {
  [ ! -d "$kernel" ] || return 0
  mkdir -p "${kernel%/*}"
  local package
  package=$(apt-cache depends linux-image-amd64 | grep -oE 'linux-image-[0-9][^ ]*' | head -n 1)
  [ -n "$package" ] || {
    apt-get update -qq
    package=$(apt-cache depends linux-image-amd64 | grep -oE 'linux-image-[0-9][^ ]*' | head -n 1)
  }
  echo "fetching $package" >&2
  rm -rf "$kernel.new"
  (cd "$WORK" && apt-get download -qq "$package" && dpkg -x "$package"_*.deb "$kernel.new")
  depmod -b "$kernel.new" "$(ls "$kernel.new/lib/modules")"
  mv "$kernel.new" "$kernel"
}

# The initial root: a static shell and the modules above. It mounts the overlay and switches to it.
make_initrd() {
  local root=$WORK/root tool module
  mkdir -p "$root"/{bin,sbin,proc,sys,dev,host,rw,new,"lib/modules/$version"}
  cp /bin/busybox "$root/bin/"
  for tool in sh mount modprobe mkdir cp chroot poweroff ip; do ln -s busybox "$root/bin/$tool"; done
  cp "$kernel/lib/modules/$version"/modules.* "$root/lib/modules/$version/"
  for module in "${modules[@]}"; do
    modprobe -d "$kernel" -S "$version" --show-depends "$module"
  done | awk '/^insmod/ { print $2 }' | sort -u | while read -r module; do
    mkdir -p "$root/$(dirname "${module#"$kernel"/}")"
    cp "$module" "$root/${module#"$kernel"/}"
  done
  printf '%q ' "$@" >"$root/command"
  # The kernel runs modprobe in the initial root; the programs and modules are in the overlay.
  printf '#!/bin/sh\nexec /bin/chroot /new /sbin/modprobe "$@"\n' >"$root/sbin/modprobe"
  cat >"$root/init" <<END
#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in ${modules[*]}; do /bin/modprobe \$module; done
END
  cat >>"$root/init" <<'END'
share=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
mount -t 9p -o $share host /host
mount -t tmpfs rw /rw; mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
for dir in proc sys dev; do mount --rbind /$dir /new/$dir; done
mount -t tmpfs run /new/run; mkdir -p /new/run/modules /new/lib/modules
mount -t 9p -o $share modules /new/run/modules; mount --rbind /new/run/modules /new/lib/modules
ip link set lo up
cp /command /new/run/command
echo vm-begin
chroot /new /bin/bash -c 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; source /run/command'
echo "vm-exit-status $?"
poweroff -f
END
  chmod +x "$root/init" "$root/sbin/modprobe"
  (cd "$root" && find . | cpio --create --format newc --quiet | gzip -1 >"$WORK/initrd")
}

[ $# -gt 0 ] || die "usage: vm.sh COMMAND..."
work_up
fetch_kernel
version=$(ls "$kernel/lib/modules")
make_initrd "$@"
truncate --size "${DISK:-2G}" "$WORK/a.img" "$WORK/b.img"
qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${MEMORY:-2048}" -nographic -no-reboot -nodefaults -serial stdio \
  -kernel "$kernel"/boot/vmlinuz-* -initrd "$WORK/initrd" -append 'console=ttyS0 quiet panic=-1' \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -virtfs "local,path=$kernel/lib/modules,mount_tag=modules,security_model=none,readonly=on" \
  -drive "if=virtio,format=raw,file=$WORK/a.img" -drive "if=virtio,format=raw,file=$WORK/b.img" </dev/null |
  stdbuf -o0 tr -d '\r' | tee "$WORK/out" | sed -u '1,/vm-begin$/d; /^vm-exit-status /d; / reboot: Power down$/d'
status=$(sed -n 's/^vm-exit-status //p' "$WORK/out" | tail -n 1)
[ -n "$status" ] || die "the machine stopped before the command finished"
exit "$status"
