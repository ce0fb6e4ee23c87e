#!/usr/bin/env bash
# Runs the tests that need a virtual machine, each in a fresh one.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
need_root
"$ROOT/hack/tools.sh"
programs_up
exec timeout 900 "$ROOT/test/vm/vm.sh" "$ROOT/test/vm/ext4-online.sh" "$TARGET/debug/wharf"
