#!/usr/bin/env bash
# Fuzzes every target in fuzz/, or only the given ones, FUZZ_SECONDS each (default 60), on all cores. Prints one line per
# target, and the path of the input for each crash. The last line is the sum: `fuzz: N passed, N failed`.
#
# Results stay in the target directory: fuzz/corpus/TARGET has inputs that reach new code, from which the next run starts;
# fuzz/artifacts/TARGET has inputs that crash. To run one of these again: hack/fuzz.sh TARGET FILE.
set -euo pipefail
# shellcheck source=hack/lib.sh
source "$(dirname "$0")/lib.sh"

SECONDS_EACH=${FUZZ_SECONDS:-60}
OUT=$TARGET/fuzz

rustup run nightly rustc --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
cargo_fuzz=$(cargo_tool cargo-fuzz 0.13.2)

# Without a sanitizer: `unsafe` exists only around system calls, which no target reaches. Panics, failed assertions and
# overflows are found without one.
fuzz() {
  RUSTUP_TOOLCHAIN=nightly CARGO_TARGET_DIR=$TARGET "$cargo_fuzz" "$@"
}

# run_target NAME: fuzzes one target, with its log in the target directory, and prints its line.
run_target() {
  local name=$1 log=$OUT/$1.log status=0 executions speed coverage crash
  mkdir -p "$OUT/corpus/$name" "$OUT/artifacts/$name"
  local inputs=("$OUT/corpus/$name")
  [ ! -d "$ROOT/fuzz/corpus-seed/$name" ] || inputs+=("$ROOT/fuzz/corpus-seed/$name")
  fuzz run --sanitizer none "$name" "${inputs[@]}" -- -max_total_time="$SECONDS_EACH" -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$OUT/artifacts/$name/" >"$log" 2>&1 || status=$?
  executions=$(sed -nE 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
  speed=$(sed -nE 's/^stat::average_exec_per_sec: *//p' "$log" | tail -n 1)
  coverage=$(sed -nE 's/^#[0-9]+[[:space:]]+[A-Za-z]+ +cov: ([0-9]+).*/\1/p' "$log" | sed -n '1p;$p' | paste -sd- | sed 's/-/ to /')
  crash=$(sed -nE 's/.*Test unit written to (.*)/\1/p' "$log" | tail -n 1)
  if [ "$status" = 0 ]; then
    printf '%-16s %9s executions, %6s/s, coverage %s: passed\n' "$name" "$executions" "$speed" "$coverage"
  else
    printf '%-16s %9s executions, %6s/s, coverage %s: FAILED: %s\n' "$name" "${executions:-?}" "${speed:-?}" "$coverage" "${crash:-see $log}"
    grep -m 1 -A 3 -E 'panicked at|ERROR: libFuzzer|^error' "$log" || true
    return 1
  fi
}

cd "$ROOT/fuzz"
mapfile -t targets < <(fuzz list)
if [ $# = 2 ] && [ -f "$2" ]; then
  fuzz run --sanitizer none "$1" "$2"
  exit
fi
[ $# = 0 ] || targets=("$@")
mkdir -p "$OUT"
fuzz build --sanitizer none

# One target per core at a time. A target that fails does not stop the others.
failed=0 running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || failed=$((failed + 1))
    running=$((running - 1))
  fi
  run_target "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || failed=$((failed + 1))
  running=$((running - 1))
done
printf 'fuzz: %d passed, %d failed\n' $((${#targets[@]} - failed)) "$failed"
[ "$failed" = 0 ]
