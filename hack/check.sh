#!/usr/bin/env bash
# The quick checks before a commit: format, lints and unit tests. No root, no network once the dependencies
# are downloaded, under two minutes if only your change has to be compiled.
set -euo pipefail
cd "$(dirname "$0")/.."
step() { printf '== %s\n' "$*"; "$@"; }
step cargo fmt --all --check
step cargo clippy --quiet --workspace --all-targets -- -D warnings
# These tests mount, change owners or format: `make test` runs them, as root.
step cargo test --quiet --workspace --lib --bins -- --skip disk::tests:: --skip uuids::tests:: --skip pods::clean::tests:: \
  --skip volumes::ownership::walk::tests:: --skip volumes::plain::
