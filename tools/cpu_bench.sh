#!/usr/bin/env bash
# Measures the CPU kernels end to end on one model and prints one JSON document: tools/cpu_bench.sh <model folder> [repeats]
#   decode after 128 and 2048 tokens, prefill of 512 and 2048, decodes of 8 and 16 together, the int8 trunk, one thread, each
#   kernel backend's prefill, and a process from start to its first token. Each case names its command and the ceilings of
#   its own run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model="$1"
repeat="${2:-5}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

measure() { # measure [flags…]: one line a case, its command added
  local command="tandem bench $(basename "$model") $*"
  build/tandem bench "$model" --json --repeat "$repeat" "$@" 2>"$work/log" | jq -c --arg command "$command" '{command: $command} + .' >>"$work/cases" ||
    { cat "$work/log" >&2; exit 1; }
}

measure -p 512 -n 64 --depth 128,2048
measure -p 2048 -n 0
measure -p 0 -n 32 --depth 128 --sequences 8,16
measure -p 0 -n 64 --depth 128 --trunk int8
measure -p 512 -n 32 --depth 128 --threads 1
for backend in avx512 avx2 portable; do
  measure -p 512 -n 32 --depth 128 --kernels "$backend"
done

# Process start to the first token, the file in the page cache: run again and again, the process timed as a whole.
start=()
for _ in 1 2 3 4 5 6 7; do
  begin="$(date +%s%N)"
  build/tandem run "$model" --tokens 1 --max-tokens 1 >/dev/null 2>&1
  start+=("$(($(date +%s%N) - begin))")
done

jq -n --arg model "$(basename "$model")" --arg commit "$(git describe --always --dirty 2>/dev/null || echo unknown)" \
  --arg machine "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors" \
  --arg date "$(date +%F)" --slurpfile cases "$work/cases" --argjson start "$(printf '%s\n' "${start[@]}" | jq -s .)" '
  {model: $model, machine: $machine, commit: $commit, date: $date, command: "tools/cpu_bench.sh",
   start_to_first_token_seconds: ($start | sort | {median: (.[length / 2 | floor] / 1e9), min: (.[0] / 1e9), max: (.[-1] / 1e9), runs: length}),
   cases: $cases}'
