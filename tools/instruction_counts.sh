#!/usr/bin/env bash
# tools/instruction_counts.sh [BUILD_DIR] [BACKEND…]: instructions of one kernel call of fixed work, one JSON document on
# stdout, so that a change of a hot loop shows on any machine, however busy. docs/bench/instruction-counts.json holds a
# run; counts move with the compiler, so compare runs of one.
#
# callgrind counts a program of 2 calls and one of 3: the difference is a warm call, without start-up and inputs.
# Backends: avx2 and portable unless named; callgrind 3.19 does not know AVX-512. Needs valgrind.
set -euo pipefail

build="${1:-build}"
backends=("${@:2}")
[[ ${#backends[@]} -gt 0 ]] || backends=(avx2 portable)
program="$build/bench/fixed_calls"
if [[ ! -x "$program" ]]; then
  echo "instruction_counts: no $program: cmake --build $build --target fixed_calls" >&2
  exit 2
fi
if ! command -v valgrind >/dev/null; then
  echo "instruction_counts: valgrind is not installed (Debian package valgrind)" >&2
  exit 2
fi

count() { # CASE CALLS BACKEND: instructions of the whole program
  local log
  log="$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" "$1" "$2" "$3" 2>&1)" || {
    echo "instruction_counts: $1 in $3: $log" >&2
    return 1
  }
  sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$log"
}

compiler="$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")"
printf '{\n "command": "tools/instruction_counts.sh",\n "compiler": "%s",\n "commit": "%s",\n "instructions_per_call": {' \
  "$("$compiler" --version | head -1)" "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
separator=''
for backend in "${backends[@]}"; do
  printf '%s\n  "%s": {' "$separator" "$backend"
  separator=''
  while IFS= read -r case_name; do
    two="$(count "$case_name" 2 "$backend")"
    three="$(count "$case_name" 3 "$backend")"
    printf '%s\n   "%s": %d' "$separator" "$case_name" $((three - two))
    separator=','
  done < <("$program")
  printf '\n  }'
  separator=','
done
printf '\n }\n}\n'
