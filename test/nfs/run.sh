#!/usr/bin/env bash
# Tests the NFS driver against a kernel NFS server, in one boot of the virtual machine.
#
#   run.sh            the parts that every change must pass
#                     They use the debug build, or $WHARF_PROGRAM
#   run.sh PART...    attacks, facts, faults, kills, kubernetes, lives, measure, nodes, quota, sanity, takeover, up; `all` is everything but measure
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
"$ROOT/hack/tools.sh"
[ -n "${WHARF_PROGRAM:-}" ] || programs_up
work_up
parts=("$@")
[ "$#" -gt 0 ] || parts=(sanity lives takeover up)
[ "${parts[0]}" != all ] || parts=(facts sanity lives quota nodes attacks faults kills takeover up kubernetes)
kubectl=$("$ROOT/test/cluster/cluster.sh" kubectl)
memory=2048
if [[ " ${parts[*]} " == *" kubernetes "* ]]; then
  "$ROOT/hack/tools.sh" kubernetes
  "$ROOT/test/cluster/cluster.sh" build
  memory=6144
fi
# Debug information is most of the binary, and the guest reads it through 9p.
strip --strip-debug -o "$WORK/wharf" "${WHARF_PROGRAM:-$TARGET/debug/wharf}"
MEMORY=$memory timeout 2400 "$ROOT/test/vm/vm.sh" env KILLS="${KILLS:-}" SEED="${SEED:-}" SANITY_FOCUS="${SANITY_FOCUS:-}" \
  KUBECTL="$kubectl" CACHE_HOME="${CACHE%/wharf}" \
  "$ROOT/test/nfs/guest.sh" "$WORK/wharf" "$CACHE/csi-sanity-5.6.0/csi-sanity" "${parts[@]}"
