# Counting checks in the guest. Source this file.
# shellcheck shell=bash
passed=0 failed=0

# check NAME COMMAND...: runs the command, which must succeed within 120 s if it is a program, and counts. A failure ends nothing: one
# boot is to show as much as possible.
check() {
  local name=$1 from=${EPOCHREALTIME/[.,]/} status=0
  shift
  "$@" >/run/check.out 2>&1 || status=$?
  local took=$(((${EPOCHREALTIME/[.,]/} - from) / 1000))
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    printf 'ok      %-80s %6d ms\n' "$name" "$took"
  else
    failed=$((failed + 1))
    printf 'FAILED  %-80s %6d ms, status %d: %s\n' "$name" "$took" "$status" "$*"
    sed 's/^/        /' /run/check.out | tail -n 12
  fi
  return 0
}

# within SECONDS COMMAND...: fails if the program takes longer.
within() {
  local limit=$1 status=0
  shift
  timeout --signal KILL "$limit" "$@" || status=$?
  [ "$status" != 137 ] || echo "still running after $limit s: $*"
  return "$status"
}
fails() { ! "$@"; }
same() { [ "$1" = "$2" ] || { printf '%s\n' "is $1" "not $2" && false; }; }
# eventually SECONDS COMMAND...: repeats until it succeeds.
eventually() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}
none() { [ -z "$("$@")" ] || { "$@" && false; }; }
summary() {
  echo "$1: $passed passed, $failed failed"
  [ "$failed" = 0 ]
}
