#!/usr/bin/env bash
# Mutation tests of the rules: changes them one by one in a copy and runs their table tests. Takes hours.
# Prints the changes that no test detects. Fails if these are more than 5 % of all changes.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

mutants=$(cargo_tool cargo-mutants 27.1.0)
work_up

# Only the rules: code that calls the API server or the driver is tested on a cluster.
rules=(
  'crates/model/src/{modify,resize,topology}.rs'
  'crates/model/src/topology/affinity.rs'
  'crates/sidecar/src/**/{decide,wake,trivial}.rs'
  'crates/sidecar/src/attacher/view.rs'
  'crates/sidecar/src/provisioner/{competition,reclaim}.rs'
  'crates/sidecar/src/provisioner/capacity/view.rs'
  'crates/controllers/src/**/decide.rs'
  'crates/controllers/src/attach_detach/{report,view}.rs'
  'crates/controllers/src/binder/decide/{bind,claim,volume}.rs'
  'crates/controllers/src/snapshot_controller/wake.rs'
  'crates/controllers/src/scheduler/{capacity,claims,fit,limits,volumes,zone}.rs'
  'crates/node/src/**/decide.rs'
  'crates/node/src/plugins/{node_info,validate}.rs'
  'crates/node/src/volumes/{expand,ownership,request}.rs'
)
# Without simulations and whole servers, which are slow: a rule's own table has to detect the change. Exit status 2 and 3:
# some mutants were missed or timed out.
(cd "$ROOT" && TMPDIR=$WORK CARGO_TARGET_DIR=$TARGET/mutants "$mutants" mutants \
  --package wharf-model --package wharf-sidecar --package wharf-controllers --package wharf-node "${rules[@]/#/--file=}" \
  --baseline=skip --timeout=120 --output="$WORK" --cargo-arg=--lib -- -- --skip simulat --skip binder::tests) || [[ $? = [23] ]]

cat "$WORK/mutants.out/missed.txt"
read -r caught missed timeout < <(
  python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(o["caught"], o["missed"], o["timeout"])' \
    "$WORK/mutants.out/outcomes.json"
)
echo "$missed of $((caught + missed + timeout)) mutants survive"
[ $((missed * 20)) -le $((caught + missed + timeout)) ] || die "more than 5 %"
