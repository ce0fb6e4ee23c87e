#!/usr/bin/env bash
# A real Kubernetes cluster for tests: etcd, the control plane, and nodes with a containerd and a kubelet each, as plain
# processes of this machine. Needs root.
#
#   cluster.sh build              build the programs, once per version; kubernetes/ and etcd/ pin the versions. With NODES
#                                 empty, build those of a cluster without nodes
#   cluster.sh up                 start a cluster, print the path of its kubeconfig, leave it running
#   cluster.sh down               stop it
#   cluster.sh run                start a cluster, print the path of its kubeconfig, stop it at the end of stdin
#   cluster.sh join NODE          add a node
#   cluster.sh node_credentials NODE  create RUN/kubeconfig-NODE with a node's permissions
#   cluster.sh credentials        create keys and a kubeconfig in RUN, for the next two commands:
#   cluster.sh etcd               run only etcd, in this process
#   cluster.sh kube_apiserver     run only kube-apiserver, in this process
#   cluster.sh signal NAME SIG    send a signal to a program (names as in RUN/pid); a program that exits is restarted
#
# PORTS is the first of the hundred ports that the cluster may use, RUN the directory with all of its files. Clusters with
# different PORTS and RUN can run at the same time; with the same PORTS, the second waits until the first has stopped.
# The root directory of a node's kubelet is RUN/<node>/kubelet.
#
# Nothing is left behind. The programs run in their own PID namespace, which the kernel kills with the keeper process,
# however that one exits. They also have their own mount namespace: mounts beneath RUN on the machine (by a driver)
# propagate to the kubelets, mounts of kubelets and containers never propagate to the machine.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
HERE=$ROOT/test/cluster

pinned() { sed -nE "s|^require $2 v(.*)|\\1|p" "$HERE/$1/go.mod"; }
KUBERNETES=$(pinned kubernetes k8s.io/kubernetes)
ETCD=$(pinned etcd go.etcd.io/etcd/server/v3)
export BIN=$CACHE/kubernetes-$KUBERNETES
export STORE=$BIN/etcd-$ETCD
export PORTS=${PORTS:-16400}
export RUN=${RUN:-/tmp/wharf-cluster-$PORTS}
# May be empty if only the API is needed.
export NODES=${NODES-node-a node-b}
# Seconds for each step of the start. An emulated machine needs more.
export STEP_TIMEOUT=${STEP_TIMEOUT:-120}
# Tests do not need fsync; a benchmark of durable writes sets this empty.
export EXTRA_ETCD_FLAGS=${EXTRA_ETCD_FLAGS---unsafe-no-fsync}
# By default the controller manager binds four claims per second; benchmarks of other components raise the limit.
export EXTRA_CONTROLLER_MANAGER_FLAGS=${EXTRA_CONTROLLER_MANAGER_FLAGS-}
PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
# Building kubelet takes minutes, and only nodes need it.
[ -z "$NODES" ] || PROGRAMS+=(kubelet)
# The machine's settings that kubelet and the network plugins change.
SYSCTLS=(kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes vm/overcommit_memory
  vm/panic_on_oom net/ipv4/ip_forward)
LOCK=
INSIDE=
WATCH=
status=0

# build_one FILE DIRECTORY PACKAGE FLAG...: builds to a temporary name first, so that an interrupted build does not look
# like a finished one.
build_one() {
  local file=$1 directory=$2 package=$3
  shift 3
  [ ! -x "$file" ] || return 0
  command -v go >/dev/null || die "building Kubernetes needs Go: install Go 1.25 or newer"
  echo "building ${file##*/}; this takes minutes"
  (cd "$HERE/$directory" && nice -n 19 go build -mod=readonly -trimpath -o "$file.$$" "$@" "$package")
  mv "$file.$$" "$file"
}

build_program() {
  local program=$1 version=k8s.io/component-base/version minor
  minor=$(cut -d. -f2 <<<"$KUBERNETES")
  mkdir -p "$BIN"
  # A module build does not set the version; without these flags the programs report v0.0.0.
  build_one "$BIN/$program" kubernetes "k8s.io/kubernetes/cmd/$program" -ldflags \
    "-s -w -X $version.gitVersion=v$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=$minor"
}

# Builds only kubectl and prints its path.
kubectl() {
  build_program kubectl >&2
  echo "$BIN/kubectl"
}

build() {
  local program
  for program in "${PROGRAMS[@]}"; do build_program "$program"; done
  build_one "$STORE" etcd go.etcd.io/etcd/server/v3 -ldflags '-s -w'
}

# Reserves the ports until this process exits. The owner removes the file when it releases the lock, so a process that
# gets the lock of a removed file tries again.
lock_ports() {
  LOCK=/run/wharf-cluster-$PORTS.lock
  while :; do
    exec 9>"$LOCK"
    flock --nonblock 9 || {
      echo "waiting for the cluster on ports $PORTS to stop" >&2
      flock 9
    }
    [ "$(stat --format %i "$LOCK" 2>/dev/null)" != "$(stat --dereference --format %i /proc/$$/fd/9)" ] || return 0
  done
}

sysctls_save() {
  local name
  for name in "${SYSCTLS[@]}"; do
    [ ! -e "/proc/sys/$name" ] || printf '%s %s\n' "$name" "$(<"/proc/sys/$name")"
  done >"$RUN/sysctls"
}

sysctls_restore() {
  local name value
  [ -f "$RUN/sysctls" ] || return 0
  while read -r name value; do
    [ "$(<"/proc/sys/$name")" = "$value" ] || echo "$value" >"/proc/sys/$name" || true
  done <"$RUN/sysctls"
}

mounts_in_run() {
  awk -v run="$RUN" '$5 == run || index($5, run "/") == 1 { print $5 }' /proc/self/mountinfo | tac
}

# The cgroups of containers that were still running at the end. containerd puts all containers of the machine under one
# name, so cgroups of other clusters are next to them.
cgroups() {
  local container
  for container in "$RUN"/*/containerd-state/io.containerd.runtime.v2.task/k8s.io/*; do
    # A cluster without nodes has no containers, and the unexpanded pattern would match those of all clusters.
    [ -d "$container" ] || continue
    find /sys/fs/cgroup -depth -type d -path "*/k8s.io/${container##*/}*" 2>/dev/null || true
  done
}

# Removes what the programs have left on the machine, after they have exited.
sweep() {
  local round
  for round in 1 2 3 4 5 6 7 8 9; do
    mounts_in_run | xargs --no-run-if-empty --delimiter '\n' --max-args 1 umount 2>/dev/null || true
    cgroups | xargs --no-run-if-empty --delimiter '\n' rmdir 2>/dev/null || true
    [ -n "$(mounts_in_run)$(cgroups)" ] || break
    sleep "0.$round"
  done
  mounts_in_run | sed 's/^/still mounted: /' >&2
  cgroups | sed 's/^/cgroup still in use: /' >&2
  rmdir /sys/fs/cgroup/k8s.io /sys/fs/cgroup/*/k8s.io 2>/dev/null || true
  sysctls_restore
  rm -rf --one-file-system "$RUN"
}

needs() {
  local file
  need_root
  for file in "${PROGRAMS[@]/#/$BIN/}" "$STORE"; do
    [ -x "$file" ] || die "$file is missing: run test/cluster/cluster.sh build"
  done
  for file in containerd ctr runc openssl python3 busybox /usr/lib/cni/ptp; do
    command -v "$file" >/dev/null || die "$file is missing: run hack/tools.sh cluster"
  done
  # The cluster has private copies of these directories, so RUN would not be shared with the machine.
  case $RUN/ in
    /run/* | /var/lib/* | /var/log/* | /opt/*) die "RUN cannot be $RUN: use a directory in /tmp" ;;
  esac
}

# keep COMMAND...: starts a cluster, prints the path of its kubeconfig, and keeps it running until the command ends, the
# cluster fails, or this process gets a stop signal.
keep() {
  needs
  lock_ports
  trap 'status=$?; trap - EXIT; release; exit "$status"' EXIT
  trap 'exit 143' TERM HUP INT
  # Clean up after an earlier keeper that was killed.
  sweep
  mkdir -p "$RUN"/{log,pid,pki}
  ln -s "$BIN" "$RUN/bin"
  echo $$ >"$RUN/keeper"
  sysctls_save
  mount --bind "$RUN" "$RUN"
  mount --make-private "$RUN"
  mount --make-shared "$RUN"
  # Both are killed with this process; the kernel then kills everything in the namespace.
  setpriv --pdeathsig KILL "$@" <&0 9>&- >/dev/null 2>&1 &
  WATCH=$!
  setpriv --pdeathsig KILL unshare --mount --propagation slave --pid --mount-proc --fork --kill-child=KILL \
    "$HERE/inside.sh" all 9>&- </dev/null >"$RUN/log/inside.log" 2>&1 &
  INSIDE=$!
  echo "$INSIDE" >"$RUN/namespace"
  while [ ! -f "$RUN/ready" ]; do
    kill -0 "$WATCH" 2>/dev/null || die "stopped before the cluster was ready"
    kill -0 "$INSIDE" 2>/dev/null || {
      tail -n 20 "$RUN"/log/*.log >&2
      die "the cluster failed to start"
    }
    sleep 0.1
  done
  echo "$RUN/kubeconfig"
  # Close stdout for callers that wait for its end.
  exec >/dev/null
  wait -n "$INSIDE" "$WATCH" || true
}

release() {
  local first
  # The first process of the namespace exits after all others in it, and unshare after that. So unshare itself is killed
  # only if it has not started the first process yet.
  first=$(pgrep --parent "${INSIDE:-0}") || first=$INSIDE
  kill -KILL ${first:+"$first"} ${WATCH:+"$WATCH"} 2>/dev/null || true
  # Waited for one by one: bash then does not report that they were killed, which is expected.
  wait "$INSIDE" 2>/dev/null || true
  wait "$WATCH" 2>/dev/null || true
  sweep
  rm -f "$LOCK"
}

run() { keep cat; }

hold() { keep sleep infinity; }

up() {
  local kubeconfig
  needs
  exec 4< <(exec setsid "$HERE/cluster.sh" hold 2> >(exec cat >&2))
  read -r kubeconfig <&4 || exit 1
  echo "$kubeconfig"
}

down() {
  need_root
  local keeper=
  [ ! -f "$RUN/keeper" ] || keeper=$(<"$RUN/keeper")
  # The process ID of a keeper that has exited may have been reused.
  if [ -n "$keeper" ] && grep -qz cluster.sh "/proc/$keeper/cmdline" 2>/dev/null; then
    kill -TERM "$keeper"
    while kill -0 "$keeper" 2>/dev/null; do sleep 0.05; done
  fi
  lock_ports
  sweep
  rm -f "$LOCK"
}

# within COMMAND...: runs a command in the namespaces of the running cluster.
within() {
  local first
  first=$(pgrep --parent "$(cat "$RUN/namespace" 2>/dev/null)" 2>/dev/null) || die "no cluster runs in $RUN"
  nsenter --target "$first" --mount --pid -- "$@"
}

join() { within "$HERE/inside.sh" join "$1"; }

signal() { within kill -s "$2" "$(cat "$RUN/pid/$1")"; }

# one FUNCTION...: runs a function of inside.sh in this process, without the cluster's namespaces.
one() {
  mkdir -p "$RUN/pki"
  exec "$HERE/inside.sh" "$@"
}

case ${1:-} in
  credentials | etcd | kube_apiserver | node_credentials) one "$@" ;;
  build | kubectl | up | down | run | hold | join | signal) "$@" ;;
  *) die "usage: cluster.sh build | kubectl | up | down | run | join NODE | node_credentials NODE | signal NAME SIGNAL" ;;
esac
