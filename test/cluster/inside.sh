#!/usr/bin/env bash
# The part of the cluster that runs in its namespaces. cluster.sh starts it and sets the environment.
#
#   inside.sh all         the first process: starts everything and keeps running
#   inside.sh join NODE   adds a node
set -euo pipefail
: "${RUN:?}" "${BIN:?}" "${PORTS:?}" "${NODES?}" "${STORE:?}" "${STEP_TIMEOUT:?}"
PKI=$RUN/pki
SERVER=https://127.0.0.1:$((PORTS + 2))
export KUBECONFIG=$RUN/kubeconfig

# Unmounts this namespace's copies of mounts that other processes may unmount later, such as the pools of other tests. The
# copies would keep their devices busy. Mounts beneath RUN are propagated from the machine.
let_go_of_others() {
  awk -v run="$RUN" -v tmp="${TMPDIR:-/tmp}" '
    $5 == run || index($5, run "/") == 1 { next }
    index($5, "/tmp/") == 1 || index($5, tmp "/") == 1 || / - [^ ]+ \/dev\/loop[0-9]+ / { print $5 }
  ' /proc/self/mountinfo | tac | while read -r target; do
    # Paths are escaped in the mount table. A mount may already be gone with its parent.
    umount --lazy "$(printf '%b' "$target")" 2>/dev/null || true
  done
}

# Overlays directories whose paths are hard-coded in some program: they show the machine's content, and writes stay private
# to the cluster.
private_directories() {
  local dir layers=$RUN/private
  mkdir "$layers"
  mount -t tmpfs tmpfs "$layers"
  for dir in /run /var/lib /var/log /opt; do
    mkdir -p "$layers$dir"/{upper,work}
    mount -t overlay overlay -o "lowerdir=$dir,upperdir=$layers$dir/upper,workdir=$layers$dir/work" "$dir"
  done
  # Mounts must propagate to containers that request it.
  mount --make-rshared /
}

certificate() { # NAME SUBJECT
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$PKI/$1.key" -subj "$2" |
    openssl x509 -req -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -days 3650 -out "$PKI/$1.crt" -extfile <(
      echo 'subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1'
      echo 'extendedKeyUsage=serverAuth,clientAuth'
    )
}

credentials() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$PKI/ca.key" \
    -out "$PKI/ca.crt" -subj /CN=wharf-test-cluster -days 3650
  certificate apiserver /CN=kube-apiserver
  certificate admin /O=system:masters/CN=admin
  # The API server does not verify it.
  certificate kubelet /O=system:nodes/CN=kubelet
  openssl ecparam -name prime256v1 -genkey -noout -out "$PKI/service-accounts.key"
  cat >"$KUBECONFIG" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$SERVER", certificate-authority: $PKI/ca.crt}}]
users: [{name: admin, user: {client-certificate: $PKI/admin.crt, client-key: $PKI/admin.key}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
END
}

# node_credentials NODE: creates the credentials of that node's kubelet.
node_credentials() {
  certificate "node-$1" "/O=system:nodes/CN=system:node:$1"
  cat >"$RUN/kubeconfig-$1" <<END
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$SERVER", certificate-authority: $PKI/ca.crt}}]
users: [{name: node, user: {client-certificate: $PKI/node-$1.crt, client-key: $PKI/node-$1.key}}]
contexts: [{name: test, context: {cluster: test, user: node}}]
current-context: test
END
}

# start NAME COMMAND...: runs the command in the background and restarts it whenever it exits, so that tests can kill it.
start() {
  local name=$1
  shift
  (
    set +e
    while :; do
      "$@" </dev/null >>"$RUN/log/$name.log" 2>&1 &
      echo $! >"$RUN/pid/$name"
      wait $!
      sleep 0.2
    done
  ) </dev/null >/dev/null 2>&1 &
}

# eventually SECONDS COMMAND...: retries the command until it succeeds. After the timeout, shows the output of a last run.
eventually() {
  local until=$((SECONDS + $1))
  shift
  while ! "$@" >/dev/null 2>&1; do
    if ((SECONDS >= until)); then
      "$@"
      return
    fi
    sleep 0.1
  done
}

kubectl() { "$BIN/kubectl" "$@"; }

# Replaces this process.
etcd() {
  # shellcheck disable=SC2086 # several flags
  exec "$STORE" --data-dir "$RUN/etcd" --log-level warn \
    --listen-client-urls "http://127.0.0.1:$PORTS" --advertise-client-urls "http://127.0.0.1:$PORTS" \
    --listen-peer-urls "http://127.0.0.1:$((PORTS + 1))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((PORTS + 1))" \
    --initial-cluster "default=http://127.0.0.1:$((PORTS + 1))" $EXTRA_ETCD_FLAGS
}

kube_apiserver() {
  # The upstream sidecars in tests use the beta version of VolumeAttributesClass.
  exec "$BIN/kube-apiserver" --etcd-servers "http://127.0.0.1:$PORTS" \
    --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --secure-port $((PORTS + 2)) \
    --tls-cert-file "$PKI/apiserver.crt" --tls-private-key-file "$PKI/apiserver.key" \
    --client-ca-file "$PKI/ca.crt" --authorization-mode Node,RBAC --allow-privileged=true \
    --enable-admission-plugins NodeRestriction \
    --kubelet-client-certificate "$PKI/admin.crt" --kubelet-client-key "$PKI/admin.key" \
    --kubelet-preferred-address-types InternalIP --service-cluster-ip-range 10.96.0.0/16 \
    --runtime-config storage.k8s.io/v1beta1/volumeattributesclasses=true \
    --service-account-issuer https://kubernetes.default.svc --endpoint-reconciler-type none \
    --service-account-key-file "$PKI/service-accounts.key" \
    --service-account-signing-key-file "$PKI/service-accounts.key"
}

control_plane() {
  start etcd "$0" etcd
  start kube-apiserver "$0" kube_apiserver
}

controllers() {
  # shellcheck disable=SC2086 # several flags
  start kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig "$KUBECONFIG" --leader-elect=false \
    --bind-address 127.0.0.1 --secure-port $((PORTS + 3)) --root-ca-file "$PKI/ca.crt" \
    --service-account-private-key-file "$PKI/service-accounts.key" $EXTRA_CONTROLLER_MANAGER_FLAGS
  start kube-scheduler "$BIN/kube-scheduler" --kubeconfig "$KUBECONFIG" --leader-elect=false \
    --bind-address 127.0.0.1 --secure-port $((PORTS + 4))
}

containerd_import() { ctr --address "$1" --namespace k8s.io images import "$RUN/images.tar"; }

# node NAME: starts a node: a containerd and a kubelet.
node() {
  local name=$1 dir=$RUN/$1 index port
  index=$(wc -l <"$RUN/nodes")
  echo "$name" >>"$RUN/nodes"
  port=$((PORTS + 10 + 10 * index))
  mkdir -p "$dir/cni" "$dir/kubelet" "$dir/pods"
  cat >"$dir/containerd.toml" <<END
version = 2
root = "$dir/containerd"
state = "$dir/containerd-state"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE, runc fails because it cannot lower the score.
  restrict_oom_score_adj = true
  stream_server_port = "$((port + 2))"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
END
  cat >"$dir/cni/10-ptp.conflist" <<END
{"cniVersion": "0.4.0", "name": "wharf-$PORTS-$name", "plugins": [{"type": "ptp", "ipam": {"type": "host-local",
  "subnet": "10.$((128 + PORTS / 100 % 100)).$index.0/24", "dataDir": "$dir/ipam"}}]}
END
  # Some test machines have cgroup v1: kubelet 1.34 is the last release that supports it, with failCgroupV1: false.
  # volumeStatsAggPeriod and syncFrequency: the defaults of one minute would delay tests.
  cat >"$dir/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: $PKI/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://$dir/containerd.sock
port: $port
healthzPort: $((port + 1))
podLogsDir: $dir/pods
volumePluginDir: $dir/kubelet/volume-plugins
volumeStatsAggPeriod: 2s
syncFrequency: 5s
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
tlsCertFile: $PKI/kubelet.crt
tlsPrivateKeyFile: $PKI/kubelet.key
resolvConf: ""
evictionHard: {nodefs.available: "1%", imagefs.available: "1%"}
imageGCHighThresholdPercent: 99
imageGCLowThresholdPercent: 98
END
  start "containerd-$name" containerd --config "$dir/containerd.toml"
  eventually "$STEP_TIMEOUT" containerd_import "$dir/containerd.sock"
  start "kubelet-$name" "$BIN/kubelet" --config "$dir/kubelet.yaml" --kubeconfig "$KUBECONFIG" \
    --hostname-override "$name" --root-dir "$dir/kubelet"
}

ready() {
  kubectl wait --for=create "node/$1" --timeout="${STEP_TIMEOUT}s"
  kubectl wait --for=condition=Ready "node/$1" --timeout="${STEP_TIMEOUT}s"
}

all() {
  local name
  let_go_of_others
  touch "$RUN/nodes"
  private_directories
  credentials
  control_plane
  "$(dirname "$0")/images.py" "$(command -v busybox)" "$RUN/images.tar"
  eventually "$STEP_TIMEOUT" kubectl get --raw /readyz
  controllers
  for name in $NODES; do node "$name"; done
  for name in $NODES; do ready "$name"; done
  # Pods need their namespace's service account.
  eventually "$STEP_TIMEOUT" kubectl get serviceaccount/default
  touch "$RUN/ready"
  # As the first process of the PID namespace, this shell inherits orphans; waiting makes bash reap them.
  while :; do sleep infinity & wait $!; done
}

join() {
  node "$1"
  ready "$1"
}

"$@"
