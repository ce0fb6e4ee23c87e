#!/usr/bin/env bash
# Runs tiers of tests and adds them up. The last line is the sum: `N passed, N failed`.
#
#   cargo    every crate's own tests: rules as tables, properties, and the real kernel
#   sanity   csi-sanity against our drivers
#   clients  the clients of others against our fakes
#   vm       what needs a kernel of its own
#   up       the README's tour, word for word
#   kubectl  logs and commands of pods, asked by kubectl itself
#   slice    the fast part of differential
#   differential  upstream's sidecars and ours, scenario by scenario, on a real API server
#   cluster  on a real Kubernetes: the cargo tests marked `ignored` in modules named `cluster`
#   three-ways  our sidecars, scenario by scenario, on the embedded API within a process, over HTTPS, and on a real API server
#   leaks    claims, snapshots and groups at random on a real API server, while everybody dies: ten minutes
#   soak     what takes long: the other cargo tests marked `ignored`, and `leaks` for an hour
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
need_root
# In a mount namespace of their own: a container that somebody starts on this machine meanwhile would get copies of the
# tests' mounts, and hold their devices. And whatever a test leaves mounted goes with the namespace.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
work_up
passed=0 failed=0

# tier NAME PATTERN COMMAND...: its output is ours; "N passed" and "N failed" count in the lines that match,
# the tier's own sums.
tier() {
  local name=$1 pattern=$2 status=0 good bad
  sum() { sed -nE "/$pattern/s/.*[^0-9]([0-9]+) $1.*/\\1/p" "$WORK/log" | awk '{ n += $1 } END { print n + 0 }'; }
  shift 2
  printf '\n== %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$WORK/log" || status=$?
  good=$(sum passed)
  bad=$(sum failed)
  # It did not build, or it died: then there is no count that says so.
  [ "$status" = 0 ] || [ "$bad" -gt 0 ] || bad=1
  printf '== %s: %d passed, %d failed\n' "$name" "$good" "$bad"
  passed=$((passed + good)) failed=$((failed + bad))
}

# One after the other, since there is one cluster at a time.
cluster() {
  "$ROOT/hack/tools.sh" cluster &&
    cargo test --workspace --no-fail-fast -- --ignored --test-threads=1 cluster::
}

# differential all|slice: the slice is the resizer's, so that a fresh machine has one program of upstream's to build. Where one
# test is named, cargo does not build the programs that it runs.
differential() {
  case $1 in
    all) "$ROOT/hack/tools.sh" cluster ;;
    slice) "$ROOT/hack/tools.sh" kubernetes && "$ROOT/test/upstream/build.sh" csi-resizer >/dev/null ;;
  esac &&
    programs_up &&
    cargo test --workspace --test differential -- --ignored --exact --nocapture "differential_$1"
}

three_ways() {
  "$ROOT/hack/tools.sh" kubernetes &&
    programs_up &&
    cargo test --workspace --test three_ways -- --ignored --exact --nocapture three_ways_all
}

kubectl() {
  KUBECTL=$("$ROOT/test/cluster/cluster.sh" kubectl) \
    cargo test --workspace --test pods -- --ignored kubectl::
}

# SOAK_SECONDS says how long, if it is set.
leaks() {
  "$ROOT/hack/tools.sh" kubernetes &&
    programs_up &&
    SOAK_SECONDS=${SOAK_SECONDS:-600} cargo test --workspace --test leaks -- --ignored --nocapture
}

# All but what has a tier of its own, what other tests start and kill, and what only prints figures.
soak() {
  "$ROOT/hack/tools.sh" kubernetes &&
    cargo test --workspace --no-fail-fast -- --ignored --nocapture --skip cluster:: --skip differential_ \
      --skip three_ways_ --skip kubectl:: --skip writes_until_it_is_killed --skip driver_process --skip figures
}

cd "$ROOT"
for name in "$@"; do
  case $name in
    cargo) tier cargo '^test result: ' cargo test --workspace --no-fail-fast ;;
    sanity) tier sanity '^csi-sanity: ' test/sanity/run.sh ;;
    clients) tier clients '^digitalocean: ' test/digitalocean/run.sh ;;
    vm) tier vm '^ext4-online: ' test/vm/run.sh ;;
    up) tier up '^up: ' test/up/run.sh ;;
    kubectl) tier kubectl '^test result: ' kubectl ;;
    slice | differential) tier "$name" '^differential: ' differential "${name/differential/all}" ;;
    three-ways) tier three-ways '^three-ways: ' three_ways ;;
    cluster) tier cluster '^test result: ' cluster ;;
    leaks | soak) tier "$name" '^test result: ' "$name" ;;
    *) die "there is no tier $name: cargo, sanity, clients, vm, up, kubectl, slice, differential, three-ways, cluster, leaks, soak" ;;
  esac
done
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
