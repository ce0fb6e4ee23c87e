# `wharf up --nfs`: two pods share a claim, as in examples/nfs-shared.yaml. Sourced by guest.sh. Needs $KUBECTL.
# shellcheck shell=bash
# shellcheck source=test/nfs/driver.sh
source "$HERE/driver.sh"

kubectl() { within 60 nsenter --net=/run/netns/node-a "$KUBECTL" --kubeconfig /run/wharf-up/kubeconfig "$@"; }
phase() { [ "$(kubectl get "$1" -o 'jsonpath={.status.phase}')" = "$2" ]; }

up() {
  plant_canaries
  nsenter --net=/run/netns/node-a "$WHARF" up --data-dir /run/wharf-up --node-name node-a --no-local --nfs "$NFS_SERVER:/xfs" \
    </dev/null >/run/up.log 2>&1 &
  local pid=$!
  check "wharf up is up" eventually 60 grep -q 'wharf is up' /run/up.log
  check "the class exists" eventually 30 kubectl get storageclass nfs
  sed 's/storageClassName: nfs-csi/storageClassName: nfs/' "$HERE/../../examples/nfs-shared.yaml" >/run/shared.yaml
  check "apply examples/nfs-shared.yaml" kubectl apply -f /run/shared.yaml
  check "the claim is bound" eventually 90 phase pvc/shared Bound
  check "the writer runs" eventually 90 phase pod/writer Running
  check "the reader runs" eventually 90 phase pod/reader Running
  check "the writer writes to the server" eventually 30 bash -c 'test -s /srv/xfs/pvc-*/log'
  check "delete" kubectl delete -f /run/shared.yaml --wait=false
  check "the directory is gone" eventually 120 bash -c '! ls -d /srv/xfs/pvc-*'
  check "the share is clean" eventually 60 share_is_clean /xfs
  kill -TERM "$pid"
  check "wharf up stops" wait "$pid"
  [ "$failed" = 0 ] || tail -n 40 /run/up.log
  check "canaries live" canaries_live
}
