#!/usr/bin/env bash
# Runs test tiers and adds up their results. The last line is the sum: `N passed, N failed`.
#
#   cargo         every crate's own tests: rules as tables, properties, and the real kernel
#   sanity        csi-sanity against our drivers
#   clients       DigitalOcean's own clients against our fake of its API
#   vm            tests that need a virtual machine
#   nfs           the NFS driver on a kernel NFS server, in a virtual machine: csi-sanity, volumes and snapshots, takeover
#   nfs-faults    sizes with the agent; the same while the server fails and the driver is killed, and the facts about Linux that the design relies on
#   nfs-cluster   the same on a real Kubernetes with two nodes
#   up            the tour in docs/getting-started.md, word for word
#   kubectl       kubectl logs and kubectl exec
#   slice         the fast part of differential
#   differential  upstream's sidecars and ours through the same scenarios, on a real API server
#   cluster       the cargo tests marked `ignored` in modules named `cluster`, on a real Kubernetes
#   three-ways    our sidecars through the same scenarios on three API servers: embedded in the process, embedded over HTTPS,
#                 and a real kube-apiserver
#   leaks         random claims, snapshots and groups on a real API server while processes are killed at random: three minutes
#   soak          the other cargo tests marked `ignored`, and `leaks` for an hour
#   dist          the panic tests with a binary built with the profile dist
#   fuzz          every parser of untrusted or persisted input, FUZZ_SECONDS each
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"
need_root
# Run in a separate mount namespace: a container started on this machine during the tests would get copies of the tests'
# mounts and keep their devices busy. Mounts that a test leaves behind disappear with the namespace.
[ -n "${IN_OWN_NAMESPACE:-}" ] || IN_OWN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
work_up
passed=0 failed=0

# tier NAME PATTERN COMMAND...: runs a tier and adds up "N passed" and "N failed" of the output lines that match PATTERN.
tier() {
  local name=$1 pattern=$2 status=0 good bad
  sum() { sed -nE "/$pattern/s/.*[^0-9]([0-9]+) $1.*/\\1/p" "$WORK/log" | awk '{ n += $1 } END { print n + 0 }'; }
  shift 2
  printf '\n== %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$WORK/log" || status=$?
  good=$(sum passed)
  bad=$(sum failed)
  # A tier that failed to build or crashed prints no count. A tier that counts no test has lost its tests or its pattern.
  [ "$bad" -gt 0 ] || { [ "$status" = 0 ] && [ "$good" -gt 0 ]; } || bad=1
  printf '== %s: %d passed, %d failed\n' "$name" "$good" "$bad"
  passed=$((passed + good)) failed=$((failed + bad))
}

# Serial, because only one cluster runs at a time.
cluster() {
  "$ROOT/hack/tools.sh" cluster &&
    cargo test --workspace --no-fail-fast -- --ignored --test-threads=1 cluster::
}

# differential all|slice: the slice compares the resizer only, so that a fresh machine builds only one upstream program. With a
# single test selected, cargo does not build the programs that the test runs; programs_up does.
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
  local program
  program=$("$ROOT/test/cluster/cluster.sh" kubectl) &&
    programs_up &&
    KUBECTL=$program cargo test --workspace --test up -- --ignored kubectl::
}

# SOAK_SECONDS sets the duration.
leaks() {
  "$ROOT/hack/tools.sh" kubernetes &&
    programs_up &&
    SOAK_SECONDS=${SOAK_SECONDS:-180} cargo test --workspace --test leaks -- --ignored --nocapture
}

# Skips tests that have their own tier, helper processes that other tests start and kill, and tests that only print figures.
soak() {
  "$ROOT/hack/tools.sh" kubernetes &&
    cargo test --workspace --no-fail-fast -- --ignored --nocapture --skip cluster:: --skip differential_ \
      --skip three_ways_ --skip kubectl:: --skip writes_until_killed --skip driver_process --skip figures
}

# In a separate target directory: a binary with the feature `faults` must not replace the one that ships.
dist() {
  cargo build --quiet --profile dist --package wharf --features faults --target-dir "$TARGET/faults" &&
    WHARF_PROGRAM=$TARGET/faults/dist/wharf cargo test --workspace --test up -- panics::
}

cd "$ROOT"
for name in "$@"; do
  case $name in
    cargo) tier cargo '^test result: ' cargo test --workspace --no-fail-fast ;;
    sanity) tier sanity '^csi-sanity: ' test/sanity/run.sh ;;
    clients) tier clients '^digitalocean: ' test/digitalocean/run.sh ;;
    vm) tier vm '^ext4-online: ' test/vm/run.sh ;;
    nfs) tier nfs '^nfs: ' test/nfs/run.sh ;;
    nfs-faults) tier nfs-faults '^nfs: ' test/nfs/run.sh facts quota nodes attacks faults kills ;;
    nfs-cluster) tier nfs-cluster '^nfs: ' test/nfs/run.sh kubernetes ;;
    up) tier up '^up: ' test/up/run.sh ;;
    kubectl) tier kubectl '^test result: ' kubectl ;;
    slice | differential) tier "$name" '^differential: ' differential "${name/differential/all}" ;;
    three-ways) tier three-ways '^three-ways: ' three_ways ;;
    cluster) tier cluster '^test result: ' cluster ;;
    leaks | soak | dist) tier "$name" '^test result: ' "$name" ;;
    fuzz) tier fuzz '^fuzz: ' hack/fuzz.sh ;;
    *) die "unknown tier $name: use cargo, sanity, clients, vm, nfs, nfs-faults, nfs-cluster, up, kubectl, slice, differential, three-ways, cluster, leaks, soak, dist or fuzz" ;;
  esac
done
printf '\n%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
