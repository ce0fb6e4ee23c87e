#!/usr/bin/env bash
# Checks the dependencies against deny.toml: licences, duplicate versions, sources. With `advisories` as argument also against the
# database of security advisories, which has to be downloaded.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
deny=$(cargo_tool cargo-deny 0.20.2)
cd "$ROOT"
"$deny" --workspace --all-features check licenses bans sources "$@"
