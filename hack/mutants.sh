#!/usr/bin/env bash
# Mutation tests of the rules: changes them one by one in a copy, and sees whether their tables notice. Takes hours.
# Fails if more than 5 % survive; which do is printed, and may be none that changes what the rule says.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

VERSION=27.1.0
mutants=$CACHE/cargo-mutants-$VERSION
[ -x "$mutants/bin/cargo-mutants" ] ||
  cargo install --quiet --locked --root "$mutants" --version "$VERSION" cargo-mutants
work_up

# The rules alone: what calls the server or the driver is tested on a cluster.
rules=(
  'crates/model/src/{modify,resize,topology}.rs'
  'crates/model/src/topology/affinity.rs'
  'crates/sidecar/src/**/{decide,wake,trivial}.rs'
  'crates/sidecar/src/attacher/view.rs'
  'crates/sidecar/src/provisioner/{claiming,reclaim}.rs'
  'crates/sidecar/src/provisioner/capacity/view.rs'
  'crates/controllers/src/**/decide.rs'
  'crates/controllers/src/attach_detach/{report,view}.rs'
  'crates/controllers/src/binder/decide/{bind,claim,volume}.rs'
  'crates/controllers/src/scheduler/{capacity,claims,fit,limits,volumes,zone}.rs'
  'crates/node/src/**/decide.rs'
  'crates/node/src/plugins/{node_info,validate}.rs'
  'crates/node/src/volumes/{expand,ownership,request}.rs'
)
# Simulations and whole servers find much, slowly: a rule's own table has to be enough. Status 2 and 3: some were
# missed, or timed out.
(cd "$ROOT" && TMPDIR=$WORK CARGO_TARGET_DIR=$TARGET/mutants "$mutants/bin/cargo-mutants" mutants \
  --package wharf-model --package wharf-sidecar --package wharf-controllers --package wharf-node "${rules[@]/#/--file=}" \
  --baseline=skip --timeout=120 --output="$WORK" --cargo-arg=--lib -- -- --skip simulat --skip binder::tests) || [[ $? = [23] ]]

cat "$WORK/mutants.out/missed.txt"
read -r caught missed timeout < <(
  python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(o["caught"], o["missed"], o["timeout"])' \
    "$WORK/mutants.out/outcomes.json"
)
echo "$missed of $((caught + missed + timeout)) mutants survive"
[ $((missed * 20)) -le $((caught + missed + timeout)) ] || die "more than 5 %"
