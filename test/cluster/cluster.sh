#!/usr/bin/env bash
# A real Kubernetes for tests: etcd, the control plane, and nodes with a containerd and a kubelet each, as plain
# processes of this machine. Needs root.
#
#   cluster.sh build              build the programs, once per version, from what kubernetes/ and etcd/ pin; with NODES
#                                 empty those of a cluster without nodes
#   cluster.sh up                 start a cluster, print its kubeconfig's path, leave it running
#   cluster.sh down               end it
#   cluster.sh run                start one, print its kubeconfig's path, end it when stdin ends
#   cluster.sh join NODE          one more node
#   cluster.sh node_credentials NODE  make RUN/kubeconfig-NODE, with a node's rights
#   cluster.sh credentials        make keys and a kubeconfig in RUN, for whoever starts these two by hand:
#   cluster.sh etcd               etcd alone, in this process
#   cluster.sh kube_apiserver     and its server
#   cluster.sh signal NAME SIG    send a signal to a program (the names in RUN/pid); one that dies is started again
#
# PORTS is the first of the hundred ports that it may use, RUN the directory that holds everything of it: with
# both of them different, clusters live side by side; with the same ports the second waits for the first to end.
# A node's kubelet has its root directory in RUN/<node>/kubelet.
#
# Nothing stays behind. The programs have a PID namespace of their own, which dies with the process that keeps
# it, whatever happens to that one. They have a mount namespace too: what is mounted beneath RUN on the machine
# (by a driver) appears at the kubelets, what kubelets and containers mount is never seen outside.
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
# None at all is fine, where only the API is needed.
export NODES=${NODES-node-a node-b}
# Tests can do without fsync; a benchmark of durable writes sets it empty.
export EXTRA_ETCD_FLAGS=${EXTRA_ETCD_FLAGS---unsafe-no-fsync}
# At its defaults the controller manager binds four claims a second; a benchmark of others sets more.
export EXTRA_CONTROLLER_MANAGER_FLAGS=${EXTRA_CONTROLLER_MANAGER_FLAGS-}
PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
# Its build takes minutes too, and nobody else needs it.
[ -z "$NODES" ] || PROGRAMS+=(kubelet)
# What kubelet and the network plugins change of the machine.
SYSCTLS=(kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes vm/overcommit_memory
  vm/panic_on_oom net/ipv4/ip_forward)
LOCK=
INSIDE=
WATCH=
status=0

# build_one FILE DIRECTORY PACKAGE FLAG...: under another name first, so that an interrupted build does not look
# like a finished one.
build_one() {
  local file=$1 directory=$2 package=$3
  shift 3
  [ ! -x "$file" ] || return 0
  command -v go >/dev/null || die "Kubernetes is built with Go: please install Go 1.25 or newer"
  echo "building ${file##*/}, which takes minutes"
  (cd "$HERE/$directory" && nice -n 19 go build -mod=readonly -trimpath -o "$file.$$" "$@" "$package")
  mv "$file.$$" "$file"
}

build_program() {
  local program=$1 version=k8s.io/component-base/version minor
  minor=$(cut -d. -f2 <<<"$KUBERNETES")
  mkdir -p "$BIN"
  # The build of a module does not know its version by itself, and then they all say v0.0.0.
  build_one "$BIN/$program" kubernetes "k8s.io/kubernetes/cmd/$program" -ldflags \
    "-s -w -X $version.gitVersion=v$KUBERNETES -X $version.gitMajor=1 -X $version.gitMinor=$minor"
}

# Builds kubectl alone, and says where it is.
kubectl() {
  build_program kubectl >&2
  echo "$BIN/kubectl"
}

build() {
  local program
  for program in "${PROGRAMS[@]}"; do build_program "$program"; done
  build_one "$STORE" etcd go.etcd.io/etcd/server/v3 -ldflags '-s -w'
}

# The ports are ours from here on, until this process ends. The file goes with the lock, so whoever gets the lock
# of a file that is not there any more tries again.
lock_ports() {
  LOCK=/run/wharf-cluster-$PORTS.lock
  while :; do
    exec 9>"$LOCK"
    flock --nonblock 9 || {
      echo "waiting for the cluster on ports $PORTS to end" >&2
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

# The cgroups of containers that were alive at the end. containerd puts all of its machine's under one name, so
# those of others are beside them.
cgroups() {
  local container
  for container in "$RUN"/*/containerd-state/io.containerd.runtime.v2.task/k8s.io/*; do
    # A cluster without nodes has none, and the pattern itself would fit everybody's.
    [ -d "$container" ] || continue
    find /sys/fs/cgroup -depth -type d -path "*/k8s.io/${container##*/}*" 2>/dev/null || true
  done
}

# Removes what the programs, dead by now, have left on the machine.
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
    [ -x "$file" ] || die "$file is missing: please run test/cluster/cluster.sh build"
  done
  for file in containerd ctr runc openssl python3 busybox /usr/lib/cni/ptp; do
    command -v "$file" >/dev/null || die "$file is missing: please run hack/tools.sh cluster"
  done
  # There the cluster has a view of its own, in which RUN would not be shared with the machine.
  case $RUN/ in
    /run/* | /var/lib/* | /var/log/* | /opt/*) die "RUN cannot be $RUN; somewhere in /tmp is fine" ;;
  esac
}

# keep COMMAND...: starts a cluster, prints its kubeconfig's path, and keeps it until the command ends, or it dies,
# or this process is told to end.
keep() {
  needs
  lock_ports
  trap 'status=$?; trap - EXIT; release; exit "$status"' EXIT
  trap 'exit 143' TERM HUP INT
  # A keeper that was killed could not do it.
  sweep
  mkdir -p "$RUN"/{log,pid,pki}
  ln -s "$BIN" "$RUN/bin"
  echo $$ >"$RUN/keeper"
  sysctls_save
  mount --bind "$RUN" "$RUN"
  mount --make-private "$RUN"
  mount --make-shared "$RUN"
  # Both are killed when we are; the kernel then kills everything in the namespace.
  setpriv --pdeathsig KILL "$@" <&0 9>&- >/dev/null 2>&1 &
  WATCH=$!
  setpriv --pdeathsig KILL unshare --mount --propagation slave --pid --mount-proc --fork --kill-child=KILL \
    "$HERE/inside.sh" all 9>&- </dev/null >"$RUN/log/inside.log" 2>&1 &
  INSIDE=$!
  echo "$INSIDE" >"$RUN/namespace"
  while [ ! -f "$RUN/ready" ]; do
    kill -0 "$WATCH" 2>/dev/null || die "told to end before the cluster was ready"
    kill -0 "$INSIDE" 2>/dev/null || {
      tail -n 20 "$RUN"/log/*.log >&2
      die "the cluster did not start"
    }
    sleep 0.1
  done
  echo "$RUN/kubeconfig"
  # Whoever waits for the end of our output has all of it.
  exec >/dev/null
  wait -n "$INSIDE" "$WATCH" || true
}

release() {
  local first
  # The first process of the namespace is gone when all others in it are, and unshare after that: so unshare itself
  # is killed only where it has not come so far.
  first=$(pgrep --parent "${INSIDE:-0}") || first=$INSIDE
  kill -KILL ${first:+"$first"} ${WATCH:+"$WATCH"} 2>/dev/null || true
  # One by one, since bash then does not tell how they died: it is as it should be.
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
  # The number of a keeper that is gone may be somebody else's by now.
  if [ -n "$keeper" ] && grep -qz cluster.sh "/proc/$keeper/cmdline" 2>/dev/null; then
    kill -TERM "$keeper"
    while kill -0 "$keeper" 2>/dev/null; do sleep 0.05; done
  fi
  lock_ports
  sweep
  rm -f "$LOCK"
}

# within COMMAND...: in the namespaces of the running cluster.
within() {
  local first
  first=$(pgrep --parent "$(cat "$RUN/namespace" 2>/dev/null)" 2>/dev/null) || die "no cluster runs in $RUN"
  nsenter --target "$first" --mount --pid -- "$@"
}

join() { within "$HERE/inside.sh" join "$1"; }

signal() { within kill -s "$2" "$(cat "$RUN/pid/$1")"; }

# one PART...: of inside.sh, where one is, without any of what keeps a cluster apart.
one() {
  mkdir -p "$RUN/pki"
  exec "$HERE/inside.sh" "$@"
}

case ${1:-} in
  credentials | etcd | kube_apiserver | node_credentials) one "$@" ;;
  build | kubectl | up | down | run | hold | join | signal) "$@" ;;
  *) die "build, kubectl, up, down, run, join NODE, node_credentials NODE, or signal NAME SIGNAL" ;;
esac
