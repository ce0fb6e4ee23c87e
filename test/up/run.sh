#!/usr/bin/env bash
# Runs the tour in docs/getting-started.md, word for word, from `make up` to `make down`. Afterwards the pool must be empty, and
# no process, mount or loop device may be left. Runs in a separate mount namespace in which /var/lib/wharf is a temporary directory.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
work_up
trap 'stop; work_down' EXIT

DATA=/var/lib/wharf
passed=0 failed=0

# Stops `wharf up` on every exit.
stop() {
  local pid
  pid=$(cat "$DATA/run/pid" 2>/dev/null) || return 0
  "$TARGET/debug/wharf" down --timeout 30s >/dev/null 2>&1 || kill -KILL "$pid" 2>/dev/null || true
}

check() {
  local what=$1
  shift
  if "$@"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    printf 'check failed: %s\n' "$what" >&2
  fi
}

# Checks to run before a line of the tour: after its last line, nothing is left to check.
looks() {
  case $1 in
    'kubectl delete '*)
      echo 'kubectl wait --for=jsonpath={.status.phase}=Bound pvc/restored pvc/copy --timeout=60s'
      echo '[ "$(kubectl exec writer -- cat /data/hello)" = "$(kubectl logs reader)" ]'
      echo '[ "$(kubectl exec writer -- df --output=size --block-size=1M /data | tail -n 1)" -gt 1800 ]'
      ;;
    'make down')
      # Deleted images are purged in the background.
      echo "for i in {1..100}; do left=\$(ls $DATA/pool/volumes $DATA/pool/snapshots $DATA/pool/trash -A | grep -v -e : -e '^\$') || break; sleep 0.1; done"
      echo "[ -d $DATA/pool/volumes ] && [ -z \"\$left\" ]"
      ;;
  esac
}

# section FILE TITLE: the code in this section of a page, without comments at the ends of lines.
section() {
  awk -v title="## $2" '/^## / { section = $0 } /^```/ { code = !code; next } code && section == title' "$ROOT/$1" |
    sed -E 's/ +# .*//'
}
tour() { section docs/getting-started.md "The tour"; }
readme() { section README.md "Quick start: one machine without Kubernetes"; }

mkdir -p "$WORK/data" "$DATA"
mount --bind "$WORK/data" "$DATA"
kubectl=$("$ROOT/test/cluster/cluster.sh" kubectl)
PATH=${kubectl%/*}:$PATH
before=$(sort /proc/self/mountinfo)

check "the README's commands are lines of the tour" [ -z "$(readme | grep -vxF -f <(tour))" ]
check "the README has commands" [ "$(readme | wc -l)" -ge 4 ]
echo "the tour:"
tour | sed 's/^/  /'
# `set -e` ignores the failure of a command before &&.
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
check "no device is left" [ -z "$(loops_in "$WORK")$(loops_in "$DATA")" ]
check "no process is left" [ -z "$(pgrep -f "$TARGET/debug/wharf up" || true)" ]
[ "$failed" = 0 ] || tail -n 40 "$DATA/log" >&2
printf 'up: %d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
