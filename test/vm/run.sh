#!/usr/bin/env bash
# Tests that need a kernel of their own, each in a fresh virtual machine.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
"$ROOT/hack/tools.sh"
programs_up
exec timeout 900 "$ROOT/test/vm/vm.sh" "$ROOT/test/vm/ext4-online.sh" "$TARGET/debug/wharf"
