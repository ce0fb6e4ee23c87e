#!/usr/bin/env bash
# Measures `wharf apiserver` beside kube-apiserver and etcd, on the same disk. Takes about ten minutes.
#
#   apiserver.sh            prints
#   apiserver.sh --write    prints, and replaces its part of bench/RESULTS.md
#   apiserver.sh --quick    with few objects: to see that it works
#   apiserver.sh --ours     ours alone
#
# DISK says where the servers keep their files, if not among temporary ones.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../hack/lib.sh"

export PORTS=${PORTS:-16800}
arguments=()
write=
profile=dist
for argument in "$@"; do
  case $argument in
    --quick) arguments+=(quick) ;;
    --ours) arguments+=(ours) ;;
    --write) write=1 ;;
    *) die "--write, --quick, --ours, or nothing" ;;
  esac
done
"$ROOT/hack/tools.sh" kubernetes
# What is measured is what is shipped; what measures need not be.
(cd "$ROOT" && cargo build --quiet --profile "$profile" --package wharf &&
  cargo build --quiet --release --package wharf-bench --bin bench-apiserver)
work_up
# They find each other in one directory.
cp "$TARGET/$profile/wharf" "$TARGET/release/bench-apiserver" "$WORK"
export DISK=${DISK:-$WORK}
case $(stat --file-system --format %T "$DISK") in
  tmpfs | ramfs) die "$DISK is in memory: please set DISK to a directory on a disk" ;;
esac
# Others' work would be measured too.
read -r load _ </proc/loadavg
echo "The machine's load is $load" >&2
"$WORK/bench-apiserver" "${arguments[@]}" | tee "$WORK/section"
[ -z "$write" ] || section_write "The API server" "$WORK/section"
