#!/usr/bin/env bash
# tools/instruction_counts.sh: instructions of one kernel call of fixed work, so that a change of a hot loop shows on any
# machine, however busy.
#
#   instruction_counts.sh [BUILD_DIR] [BACKEND…]                   one JSON document on stdout
#   instruction_counts.sh --compare FILE [BUILD_DIR] [BACKEND…]    counts, and prints what moved by more than 2 % of FILE
#   instruction_counts.sh --compare FILE --with NEW                the same of two documents
#
# A comparison exits with 1 when something moved or is gone. docs/bench/instruction-counts.json holds a run; counts move
# with the compiler, so compare runs of one (a comparison of two says so).
#
# callgrind counts a program of 2 calls and one of 3: the difference is a warm call, without start-up and inputs.
# Backends: avx2 and portable unless named; callgrind 3.19 does not know AVX-512 and AMX. Needs valgrind.
set -euo pipefail

# CASES of a document as lines "backend/case count".
cases_of() {
  sed -n -e 's/^  "\([a-z0-9]*\)": {$/B \1/p' -e 's/^   "\([^"]*\)": \([0-9]*\),\{0,1\}$/C \1 \2/p' "$1" |
    awk '$1 == "B" { backend = $2 } $1 == "C" { print backend "/" $2, $3 }'
}
compiler_of() { sed -n 's/^ "compiler": "\(.*\)",$/\1/p' "$1"; }

compare() { # OLD NEW: only of backends that NEW has
  [[ "$(compiler_of "$1")" == "$(compiler_of "$2")" ]] ||
    echo "instruction_counts: another compiler: $(compiler_of "$1"), now $(compiler_of "$2")" >&2
  awk 'function percent(old, new) { return 100 * (new - old) / old }
    NR == FNR { old[$1] = $2; next }
    { new[$1] = $2; split($1, part, "/"); counted[part[1]] = 1 }
    END {
      for (name in old) {
        split(name, part, "/")
        if (!(part[1] in counted)) continue
        if (!(name in new)) { print name ": " old[name] ", now not there"; bad = 1; continue }
        compared++
        change = percent(old[name], new[name])
        if (change > 2 || change < -2) { printf "%s: %d, now %d, %+.1f %%\n", name, old[name], new[name], change; bad = 1 }
      }
      if (!compared) { print "nothing in common"; bad = 1 }
      if (!bad) printf "%d counts within 2 %%\n", compared
      exit bad
    }' <(cases_of "$1") <(cases_of "$2")
}

if [[ "${1:-}" == --compare ]]; then
  old="${2:?--compare needs a file}"
  [[ -r "$old" ]] || { echo "instruction_counts: cannot read $old" >&2; exit 2; }
  shift 2
  if [[ "${1:-}" == --with ]]; then
    new="${2:?--with needs a file}"
    [[ -r "$new" ]] || { echo "instruction_counts: cannot read $new" >&2; exit 2; }
    compare "$old" "$new"
    exit
  fi
  new="$(mktemp)"
  trap 'rm -f "$new"' EXIT
  "$0" "$@" >"$new"
  compare "$old" "$new"
  exit
fi

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
