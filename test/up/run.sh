#!/usr/bin/env bash
# The README's tour, word for word, from `make up` to `make down`; afterwards the pool is empty and the machine as before.
# It runs in a mount namespace of its own, in which /var/lib/wharf is a throwaway directory.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
work_up
trap 'stop; work_down' EXIT

DATA=/var/lib/wharf
passed=0 failed=0

# Whatever happened, nothing of it may run on.
stop() {
  local pid
  pid=$(cat "$DATA/run/pid" 2>/dev/null) || return 0
  "$TARGET/release/wharf" down --timeout 30s >/dev/null 2>&1 || kill -KILL "$pid" 2>/dev/null || true
}

check() {
  local what=$1
  shift
  if "$@"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    printf 'not as it must be: %s\n' "$what" >&2
  fi
}

# Lines that a test may look between: nothing is left of the tour when it has ended.
looks() {
  case $1 in
    'kubectl delete '*)
      echo 'kubectl wait --for=jsonpath={.status.phase}=Bound pvc/restored pvc/copy --timeout=60s'
      echo '[ "$(kubectl exec writer -- cat /data/hello)" = "$(kubectl logs reader)" ]'
      echo '[ "$(kubectl exec writer -- df --output=size --block-size=1M /data | tail -n 1)" -gt 1800 ]'
      ;;
    'make down')
      # What is deleted is purged in the background.
      echo "for i in {1..100}; do left=\$(ls $DATA/pool/volumes $DATA/pool/snapshots $DATA/pool/trash -A | grep -v -e : -e '^\$') || break; sleep 0.1; done"
      echo "[ -d $DATA/pool/volumes ] && [ -z \"\$left\" ]"
      ;;
  esac
}

# The commands of the README's section "A tour".
tour() { awk '/^## / { section = $0 } /^```/ { code = !code; next } code && section == "## A tour"' "$ROOT/README.md"; }

mkdir -p "$WORK/data" "$DATA"
mount --bind "$WORK/data" "$DATA"
kubectl=$("$ROOT/test/cluster/cluster.sh" kubectl)
PATH=${kubectl%/*}:$PATH
before=$(sort /proc/self/mountinfo)
loops=$(losetup --list --noheadings --output NAME | sort)

echo "the README's tour:"
tour | sed 's/^/  /'
# With -e alone, a command before && may fail unseen.
script=$(tour | while read -r line; do
  looks "$line" | sed 's/$/ || exit 1/'
  printf '%s || exit 1\n' "$line"
done)
if (cd "$ROOT" && bash -euo pipefail -c "$script") >"$WORK/out" 2>&1; then
  check "the tour has lines" [ "$(tour | wc -l)" -ge 6 ]
else
  failed=$((failed + 1))
fi
sed 's/^/  | /' "$WORK/out"
check "the pod's file was read" grep -Eq '[0-9]{2}:[0-9]{2}:[0-9]{2}' "$WORK/out"
check "nothing is mounted that was not" [ "$(sort /proc/self/mountinfo)" = "$before" ]
check "no device is left" [ "$(losetup --list --noheadings --output NAME | sort)" = "$loops" ]
check "no process is left" [ -z "$(pgrep -f "$TARGET/release/wharf up" || true)" ]
[ "$failed" = 0 ] || tail -n 40 "$DATA/log" >&2
printf 'up: %d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
