#!/usr/bin/env bash
# Installs what the other commands need and this machine lacks: Debian packages (as root, by apt-get), and
# csi-sanity, built from the version pinned in test/sanity. Does nothing if everything is installed.
#
#   tools.sh run         what `wharf up` and the local driver call: mkfs and the like
#   tools.sh             the same, and what all tests except those on a cluster need
#   tools.sh kubernetes  what a test cluster without nodes needs: Kubernetes' control plane, whose build takes minutes
#   tools.sh cluster     the same with nodes, and upstream's sidecars, whose builds take minutes too
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

SANITY_VERSION=5.6.0
sanity=$CACHE/csi-sanity-$SANITY_VERSION/csi-sanity

# Each function prints lines of: program package.
for_run() {
  cat <<'END'
mkfs.xfs xfsprogs
mkfs.btrfs btrfs-progs
mkfs.ext4 e2fsprogs
losetup mount
blkid util-linux
END
}

for_tests() {
  for_run
  cat <<'END'
fio fio
qemu-system-x86_64 qemu-system-x86
cpio cpio
depmod kmod
rpc.nfsd nfs-kernel-server
tc iproute2
python3 python3-minimal
ps procps
END
}

for_cluster() {
  cat <<'END'
containerd containerd
runc runc
/usr/lib/cni/ptp containernetworking-plugins
openssl openssl
python3 python3
setpriv util-linux
pgrep procps
END
}

# packages LINES PACKAGE...: installs the packages of LINES whose programs are missing, and the packages that are named.
packages() {
  local missing=() program package
  while read -r program package; do
    command -v "$program" >/dev/null || missing+=("$package")
  done <<<"$1"
  shift
  for package in "$@"; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ "${#missing[@]}" -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || die "please install, as root: apt-get install ${missing[*]}"
  echo "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install --yes --no-install-recommends -qq "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq
    apt-get install --yes --no-install-recommends -qq "${missing[@]}" >/dev/null
  }
}

csi_sanity() {
  [ ! -x "$sanity" ] || return 0
  command -v go >/dev/null || die "csi-sanity is built with Go: please install Go 1.25 or newer"
  echo "building csi-sanity $SANITY_VERSION"
  mkdir -p "${sanity%/*}"
  # Build under a temporary name: an interrupted build must not look like a finished one.
  (cd "$ROOT/test/sanity" && go build -trimpath -o "$sanity.$$" github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity)
  mv "$sanity.$$" "$sanity"
}

case ${1:-} in
  run) packages "$(for_run)" ;;
  '')
    # Any busybox provides the program; only the static one runs in a root without libraries.
    packages "$(for_tests)" busybox-static
    csi_sanity
    ;;
  kubernetes | cluster)
    packages "$(for_cluster)" busybox-static
    if [ "$1" = kubernetes ]; then NODES='' "$ROOT/test/cluster/cluster.sh" build; else
      "$ROOT/test/cluster/cluster.sh" build
      "$ROOT/test/upstream/build.sh" >/dev/null
    fi
    ;;
  *) die "unknown argument $1: use run, kubernetes, cluster, or none" ;;
esac
