#!/usr/bin/env bash
# Measures the NFS driver on a kernel NFS server in the virtual machine. The machine is emulated, so only the ratios mean something.
#
#   nfs.sh            print the results
#   nfs.sh --write    print the results and update their section of bench/RESULTS.md
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"
need_root
work_up
(cd "$ROOT" && cargo build --quiet --profile dist --package wharf)
cp "$TARGET/dist/wharf" "$WORK/program"
DISK=8G WHARF_PROGRAM=$WORK/program "$ROOT/test/nfs/run.sh" measure | tee "$WORK/out"
{
  printf '## The NFS driver\n\nOne run of `bench/nfs.sh`: client and server in one emulated machine with two processors (Debian, Linux 6.1), NFS 4.2 on xfs.\n'
  printf 'Times include starting the client, which the first row shows.\n\n| measurement | wharf | compared with | ratio |\n|---|---|---|---|\n'
  sed -n 's/^row //p' "$WORK/out" | awk -F' [|] ' '{ printf "| %s | %s | %s | %s |\n", $1, $2, $3, $3 + 0 ? sprintf("%.2f", $2 / $3) : "-" }'
} >"$WORK/section"
cat "$WORK/section"
[ "${1:-}" != --write ] || section_write "The NFS driver" "$WORK/section"
