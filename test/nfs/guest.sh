#!/usr/bin/env bash
# Runs in the virtual machine (see test/vm/vm.sh): starts an NFS server and runs the named parts against it.
#
#   guest.sh WHARF CSI-SANITY PART...   WHARF is the binary to test. The parts are listed in run.sh
set -euo pipefail
HERE=$(dirname "$0")
WHARF=$1
SANITY=$2
shift 2
# shellcheck source=test/nfs/check.sh
source "$HERE/check.sh"
# shellcheck source=test/nfs/server.sh
source "$HERE/server.sh"

# The initial root has no udev.
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
check "network" network_up
check "disks" disks_up
check "server" server_up
for part in "$@"; do
  echo "-- $part"
  # shellcheck source=/dev/null
  source "$HERE/$part.sh"
  "$part"
done
check "no process is stuck" eventually 30 none stuck_processes
check "no NFS mount is left" none nfs_mounts
check "the kernel reported no fault" fails grep -E 'BUG:|Oops|WARNING:|hung_task|blocked for more than' <(dmesg)
summary nfs
