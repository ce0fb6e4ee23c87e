# A kernel NFS server and its clients, each in a network namespace of the virtual machine (see test/vm/vm.sh), and ways to break
# the server. Source this file in the guest. All traffic stays on veth pairs inside the guest.
#
#   namespace   address     what it is
#   server      10.99.0.1   knfsd with two exports: /xfs (/dev/vda: reflink, project quota) and /ext4 (/dev/vdb: project quota)
#   node-a      10.99.1.2   a node
#   node-b      10.99.2.2   another node
# shellcheck shell=bash

NFS_SERVER=10.99.0.1
NODES=(node-a node-b)

# in_ns NAMESPACE COMMAND...: only the network differs, so mounts are visible to every namespace.
in_ns() {
  local ns=$1
  shift
  nsenter --net="/run/netns/$ns" -- "$@"
}

network_up() {
  local i=0 node
  ip netns add server
  ip -n server link set lo up
  ip -n server address add "$NFS_SERVER/32" dev lo
  for node in "${NODES[@]}"; do
    i=$((i + 1))
    ip netns add "$node"
    ip -n "$node" link set lo up
    ip link add "to-$node" netns server type veth peer name eth0 netns "$node"
    ip -n server address add "10.99.$i.1/24" dev "to-$node"
    ip -n server link set "to-$node" up
    ip -n "$node" address add "10.99.$i.2/24" dev eth0
    ip -n "$node" link set eth0 up
    ip -n "$node" route add default via "10.99.$i.1"
    # Equal client identities would steal each other's leases.
    in_ns "$node" mount -t sysfs sysfs /sys
    modprobe nfs
    printf '%s' "$node" >/sys/fs/nfs/net/nfs_client/identifier
    umount /sys
  done
}

# make_xfs and make_ext4 create the file system of an export. -K would leave old blocks, which are never read.
make_xfs() { mkfs.xfs -q -f -K -m reflink=1 "${1:-/dev/vda}"; }
make_ext4() { mkfs.ext4 -q -F -E nodiscard -O quota,project "${1:-/dev/vdb}"; }

disks_up() {
  make_xfs && make_ext4
  # The root of NFSv4's tree of exports must be on a file system that can be exported; the guest's root, an overlay, cannot.
  mount -t tmpfs root /srv
  mkdir -p /srv/xfs /srv/ext4
  mount -o pquota /dev/vda /srv/xfs
  mount -o prjquota /dev/vdb /srv/ext4
}

# export_add OPTIONS DIRECTORY: fsid must stay the same when the file system is created again. Without `sync`, fsync has no effect.
export_add() { in_ns server exportfs -o "rw,sync,no_subtree_check,$1" "*:$2"; }

exports_up() {
  in_ns server exportfs -o ro,sync,no_subtree_check,fsid=0 '*:/srv'
  export_add fsid=1,no_root_squash /srv/xfs
  export_add fsid=2,no_root_squash /srv/ext4
}

# Starts the server's daemons and knfsd. nfsdcld remembers clients, so that they can reclaim locks after a restart; the kernel's own
# ways to do so work in the initial network namespace only.
server_up() {
  modprobe nfsd
  mkdir -p /run/rpc_pipefs /var/lib/nfs/nfsdcld /run/nfs
  in_ns server mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs
  in_ns server mount -t nfsd nfsd /proc/fs/nfsd
  : >/etc/exports
  in_ns server nfsdcld --pipefsdir=/run/rpc_pipefs --storagedir=/var/lib/nfs/nfsdcld
  in_ns server rpc.mountd --no-nfs-version 2 --no-nfs-version 3
  exports_up
  server_start
}

# Without end_grace a restarted server refuses opens for the whole grace period.
server_start() {
  in_ns server rpc.nfsd --no-udp --no-nfs-version 3 --grace-time 10 --lease-time 10 --host "$NFS_SERVER" "${NFSD_THREADS:-8}"
}
# The write fails with EBUSY if no client is known and so no grace period began.
end_grace() { { echo Y >/proc/fs/nfsd/v4_end_grace; } 2>/dev/null || true; }

# Closes the server's sockets: clients are refused, and state is gone.
server_stop() { in_ns server rpc.nfsd 0; }
server_restart() {
  server_stop
  server_start
  "${1:-end_grace}"
}

# Packets vanish between the server and the named nodes (default: all).
partition() {
  local node
  for node in "${@:-${NODES[@]}}"; do tc -n server qdisc add dev "to-$node" root netem loss 100%; done
}
heal() {
  local node
  for node in "${@:-${NODES[@]}}"; do tc -n server qdisc del dev "to-$node" root; done
}

# Connections stay open, the server accepts calls, and calls that write never end.
freeze() { fsfreeze --freeze "${1:-/srv/xfs}"; }
thaw() { fsfreeze --unfreeze "${1:-/srv/xfs}"; }

# A new file system under the same fsid: every file handle that clients hold is stale.
make_stale() {
  in_ns server exportfs -u '*:/srv/xfs'
  in_ns server exportfs -f
  local i
  for ((i = 0; i < 50; i++)); do umount /srv/xfs 2>/dev/null && break || sleep 0.1; done
  make_xfs
  mount -o pquota /dev/vda /srv/xfs
  exports_up
}

# Prints processes in uninterruptible sleep, with what they wait for. Kernel threads are not of interest.
stuck_processes() { ps -eo state,ppid,pid,wchan:32,args | awk '$1 == "D" && $2 != 2'; }
# Prints NFS mounts of this mount namespace.
nfs_mounts() { awk '{ for (i = 7; i < NF; i++) if ($i == "-") { if ($(i + 1) ~ /^nfs4?$/) print $5, $(i + 2) } }' /proc/self/mountinfo; }
