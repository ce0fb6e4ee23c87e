#!/usr/bin/env bash
# Builds the upstream programs that tests and benchmarks compare ours with: all of them, or only the given ones. The go.mod files
# in the subdirectories pin the versions; each version is built once. Prints the directory of the programs.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/../../hack/lib.sh"
HERE=$ROOT/test/upstream

# Prints lines of: directory module program.
programs() {
  cat <<'LINES'
provisioner github.com/kubernetes-csi/external-provisioner/v5 csi-provisioner
resizer github.com/kubernetes-csi/external-resizer csi-resizer
snapshotter github.com/kubernetes-csi/external-snapshotter/v8 csi-snapshotter
snapshotter github.com/kubernetes-csi/external-snapshotter/v8 snapshot-controller
hostpath github.com/kubernetes-csi/csi-driver-host-path hostpathplugin
LINES
}

mkdir -p "$CACHE/upstream"
while read -r directory module program; do
  [ $# = 0 ] || [[ " $* " == *" $program "* ]] || continue
  version=$(sed -nE "s|^(require )?\t?$module v([^ ]*).*|\\2|p" "$HERE/$directory/go.mod")
  file=$CACHE/upstream/$program-$version
  if [ ! -x "$file" ]; then
    command -v go >/dev/null || die "upstream's programs are built with Go: please install Go 1.26 or newer"
    echo "building $program $version, which takes minutes" >&2
    # Build under a temporary name: an interrupted build must not look like a finished one.
    (cd "$HERE/$directory" && nice -n 19 go build -mod=readonly -trimpath -ldflags "-s -w -X main.version=v$version" \
      -o "$file.$$" "$module/cmd/$program")
    mv "$file.$$" "$file"
  fi
  # Callers use the name without the version.
  ln -sf "${file##*/}" "$CACHE/upstream/$program"
done < <(programs)
echo "$CACHE/upstream"
