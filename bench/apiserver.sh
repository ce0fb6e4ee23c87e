#!/usr/bin/env bash
# Compares `wharf apiserver` with kube-apiserver and etcd on the same disk. Takes about ten minutes.
#
#   apiserver.sh            print the results
#   apiserver.sh --write    print the results and update their section of bench/RESULTS.md
#   apiserver.sh --quick    use few objects, to check that the benchmark works
#   apiserver.sh --ours     measure only wharf
#
# DISK is the directory for the servers' files; the default is a temporary directory.
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
    *) die "usage: apiserver.sh [--write] [--quick] [--ours]" ;;
  esac
done
"$ROOT/hack/tools.sh" kubernetes
# The measured binary has the release profile of distributions; the benchmark program need not.
(cd "$ROOT" && cargo build --quiet --profile "$profile" --package wharf &&
  cargo build --quiet --release --package wharf-bench --bin bench-apiserver)
work_up
# The benchmark expects both programs in one directory.
cp "$TARGET/$profile/wharf" "$TARGET/release/bench-apiserver" "$WORK"
export DISK=${DISK:-$WORK}
case $(stat --file-system --format %T "$DISK") in
  tmpfs | ramfs) die "$DISK is in memory: set DISK to a directory on a disk" ;;
esac
# Other load on the machine distorts the results.
read -r load _ </proc/loadavg
echo "The machine's load is $load" >&2
"$WORK/bench-apiserver" "${arguments[@]}" | tee "$WORK/section"
[ -z "$write" ] || section_write "The API server" "$WORK/section"
