#!/usr/bin/env bash
# Tests the NFS driver against a kernel NFS server, in one boot of the virtual machine.
#
#   run.sh            the parts that every change must pass
#   run.sh PART...    facts, sanity, lives, quota, faults, kills, takeover, measure; `all` is everything but the last
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
"$ROOT/hack/tools.sh"
programs_up
work_up
parts=("$@")
[ "$#" -gt 0 ] || parts=(sanity lives takeover)
[ "${parts[0]}" != all ] || parts=(facts sanity lives quota faults kills takeover)
# Debug information is most of the binary, and the guest reads it through 9p.
strip --strip-debug -o "$WORK/wharf" "$TARGET/debug/wharf"
timeout 2400 "$ROOT/test/vm/vm.sh" env KILLS="${KILLS:-}" SEED="${SEED:-}" SANITY_FOCUS="${SANITY_FOCUS:-}" \
  "$ROOT/test/nfs/guest.sh" "$WORK/wharf" "$CACHE/csi-sanity-5.6.0/csi-sanity" "${parts[@]}"
