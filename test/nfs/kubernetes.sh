# A real Kubernetes with two nodes: pods on both write to one file, then snapshot, restore, expand, delete. Sourced by guest.sh.
# Needs $CACHE_HOME, which has the cluster's programs.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

kube() { within 60 "$KUBECTL" --kubeconfig "$RUN/kubeconfig" --request-timeout 50s "$@"; }
# field OBJECT JSONPATH VALUE
field() { same "$(kube get "$1" -o "jsonpath={$2}")" "$3"; }
absent() { [ -z "$(kube get "$@" -o name --ignore-not-found)" ]; }
# cluster SECONDS COMMAND
cluster() { within "$1" env STEP_TIMEOUT=600 RUN="$RUN" NODES="${NODES[*]}" XDG_CACHE_HOME="$CACHE_HOME" "$HERE/../cluster/cluster.sh" "$2"; }

# sidecar NAME ARGUMENT...
declare -A sidecar_pid=()
sidecar() {
  local name=$1
  shift
  "$WHARF" sidecar --csi-address "$(socket "${name#*-sidecar-}")" --http-endpoint "127.0.0.1:$((9800 + ${#sidecar_pid[@]}))" "$@" \
    </dev/null >"/run/$name.log" 2>&1 &
  sidecar_pid[$name]=$!
}

kubernetes() {
  local node name
  # The containers' overlays need a file system that is not an overlay itself.
  mkdir -p /cluster && mount -t tmpfs cluster /cluster
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  RUN=/cluster/run SOCKETS=/cluster/run/sockets SHARE=/xfs
  plant_canaries
  check "a Kubernetes with two nodes" cluster 900 up
  [ -s "$RUN/kubeconfig" ] || { tail -n 20 "$RUN"/log/*.log && return 0; }
  mkdir -p "$SOCKETS"
  for node in "${NODES[@]}"; do
    check "driver on $node" driver_up "$node"
    sidecar "node-sidecar-$node" --node --kubelet-registration-path "$(socket "$node")" \
      --plugin-registration-path "$RUN/$node/kubelet/plugins_registry"
  done
  check "install" kube apply -f "$HERE/../../deploy/crds" -f "$HERE/kubernetes/classes.yaml"
  sidecar controller-sidecar-node-a --kubeconfig "$RUN/kubeconfig" --namespace kube-system --extra-create-metadata --timeout 2m \
    --retry-interval-max 10s --roles provisioner,resizer,snapshotter,snapshot-controller
  for node in "${NODES[@]}"; do
    check "$node has the driver" eventually 120 field "csinode/$node" .spec.drivers[0].name nfs.csi.k8s.io
  done

  check "create a claim and a pod on each node" kube apply -f "$HERE/kubernetes/writers.yaml"
  check "the claim is bound" eventually 120 field pvc/shared .status.phase Bound
  for node in "${NODES[@]}"; do check "the writer on $node runs" eventually 240 field "pod/writer-$node" .status.phase Running; done
  local log
  log=/srv/xfs/$(kube get pvc/shared -o "jsonpath={.spec.volumeName}")/log
  for node in "${NODES[@]}"; do check "$node writes" eventually 60 grep -q "^$node 5$" "$log"; done
  check "no line is lost or torn" whole_lines "$log"

  check "take a snapshot" kube apply -f "$HERE/kubernetes/snapshot.yaml"
  check "it is ready" eventually 180 field volumesnapshot/before .status.readyToUse true
  check "restore it" kube apply -f "$HERE/kubernetes/restored.yaml"
  check "the restored claim is bound" eventually 180 field pvc/restored .status.phase Bound
  check "its pod runs on the other node" eventually 180 field pod/reader .status.phase Running
  check "it reads what was in the snapshot" eventually 30 reads_snapshot "$log"
  check "expand the claim" kube patch pvc/shared --patch '{"spec": {"resources": {"requests": {"storage": "2Gi"}}}}'
  check "it has the new size" eventually 120 field pvc/shared .status.capacity.storage 2Gi

  check "delete the pods" kube delete pod --all --grace-period 1 --wait=false
  check "the pods are gone" eventually 180 absent pod
  for node in "${NODES[@]}"; do check "nothing is mounted on $node" fails grep -q " $RUN/$node/kubelet/pods/[^ ]*/mount .* nfs" /proc/self/mountinfo; done
  check "no line was lost or torn" whole_lines "$log"
  check "delete snapshot and claims" kube delete volumesnapshot/before pvc/shared pvc/restored --wait=false
  check "the volumes are gone" eventually 180 absent pv
  check "the snapshot is gone" eventually 120 absent volumesnapshotcontent
  check "the share is clean" eventually 60 share_is_clean /xfs
  if [ "$failed" != 0 ]; then
    kube get pod,pvc,pv,volumesnapshot,volumesnapshotcontent,csinode,event -A || true
    tail -n 15 /run/*-sidecar-*.log /run/node-?.log
  fi
  for name in "${!sidecar_pid[@]}"; do
    kill -TERM "${sidecar_pid[$name]}"
    check "$name stops" wait "${sidecar_pid[$name]}"
  done
  for node in "${NODES[@]}"; do check "driver stops on $node" driver_down "$node"; done
  check "the cluster stops" cluster 120 down
  check "canaries live" canaries_live
  unset SOCKETS
}
# reads_snapshot FILE: the reader's copy is the beginning of the file, with lines of both nodes.
reads_snapshot() {
  local copy node
  copy=/srv/xfs/$(kube get pvc/restored -o "jsonpath={.spec.volumeName}")/copy
  for node in "${NODES[@]}"; do grep -q "^$node 5$" "$copy" || return 1; done
  cmp --bytes "$(stat --format %s "$copy")" "$copy" "$1"
}
# whole_lines FILE: the lines of each node are numbered without a gap, and there are no others.
whole_lines() {
  awk '{ if (NF != 2 || $2 != ++last[$1]) { print FILENAME ": line " NR ": " $0; bad = 1 } } END { exit bad || length(last) != 2 }' "$1"
}
