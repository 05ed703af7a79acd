#!/usr/bin/env bash
# Writes the measured table of README.md from docs/bench/*.json, between its two marks: tools/readme_numbers.sh
# The documents come from tools/cpu_bench.sh, tools/serve_bench.sh and `tandem bench --ram`; no number is typed here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
table="$(mktemp)"
trap 'rm -f "$table"' EXIT

{
  printf '| what | measured (median, least to most) | command |\n|---|---|---|\n'
  jq -r '
    def n: if . >= 100 then round else (. * 10 | round / 10) end;
    def case(f): [.cases[] | select(f)][0];
    def rate: "\(.tok_s | n) tok/s (\(.min | n) to \(.max | n))";
    def row($what; $measured; $command): "| \($what) | \($measured) | `\($command)` |";
    . as $all
    | (case(.phase == "decode" and .depth == 128 and .sequences == 1 and .threads > 1)) as $d
    | row("\(.model), decode after 128 tokens"; "\($d | rate): \($d.percent_of_read_ceiling | round) % of the \($d.ceiling_read_gb_s | n) GB/s read in that run"; $d.command),
      (case(.phase == "decode" and .depth == 2048) | row("decode after 2,048"; "\(rate): \(.percent_of_read_ceiling | round) % of it"; .command)),
      (case(.phase == "prefill" and .tokens == 512 and .threads > 1) | row("prefill of 512"; "\(rate): \(.gflop_s | round) GFLOP/s, the f32 FMA ceiling being \(.ceiling_f32_gflop_s | round)"; .command)),
      (case(.phase == "prefill" and .tokens == 2048) | row("prefill of 2,048"; rate; .command)),
      ([.cases[] | select(.phase == "prefill" and (.command | contains("--kernels")))] | map("\(.command | sub(".*--kernels "; "")) \(.tok_s | n)") | row("prefill of 512 by kernels, tok/s"; join(", "); "tandem bench k3-mini -p 512 --kernels …")),
      (case(.phase == "decode" and .sequences == 16) | row("16 sequences decoded together"; "\(rate), \(.tok_s / $d.tok_s * 10 | round / 10) times one"; .command)),
      (case(.command | contains("int8")) | row("decode, int8 trunk"; "\(rate)"; .command)),
      row("process start to first token"; "\(.start_to_first_token_seconds.median * 100 | round / 100) s"; "tandem run k3-mini --tokens 1 --max-tokens 1")
  ' docs/bench/k3-mini-cpu.json
  jq -r '
    def n: if . >= 100 then round else (. * 10 | round / 10) end;
    .cases[] | "| k3-stream, 40 GB of experts, \(.experts_in_memory) of them in memory | \(.tok_s | n) tok/s (\(.min | n) to \(.max | n)), \(.hit_rate * 100 | round) % hits, \(.read_gb_s | n) GB/s read of the drive\u0027s \(.drive_random_read_gb_s | n); peak memory \(.peak_percent_of_ram) % of the budget | `tandem bench --ram \(.ram_mb)MB` |"
  ' docs/bench/k3-stream-cpu.json
  jq -r '
    def s: . * 100 | round / 100;
    .models[] | .model as $m
    | (.ttft[-1] | "| serving \($m), \(.prompt_tokens) tokens: cold, the same prompt again, 64 tokens more | first token after \(.cold_seconds.median | s) s, \(.same_prompt_seconds.median | s) s, \(.extended_seconds.median | s) s | `tools/serve_bench.sh` |"),
      (.sixteen_streams | "| serving \($m), a step of 16 streams over the bare engine\u0027s | \(.overhead.median * 1000 | round / 10) % (median of \(.rounds) rounds, \(.overhead.min * 1000 | round / 10) to \(.overhead.max * 1000 | round / 10)) | the same |"),
      (.verification_at_half_load | (.ttft_rise.median? // .ttft_rise_median) as $ttft | (.tpot_rise.median? // .tpot_rise_median) as $tpot
       | "| serving \($m) at half load with every hit to be verified | time to first token \($ttft * 1000 | round / 10) %, to each further one \($tpot * 1000 | round / 10) % beside a run without | the same |")
  ' docs/bench/serve-cpu.json
} >"$table"

awk -v table="$table" '
  /<!-- … to here -->/ { hidden = 0 }
  !hidden { print }
  /<!-- tools\/readme_numbers.sh writes from here … -->/ { while ((getline line < table) > 0) print line; hidden = 1 }
' README.md >README.md.tmp
mv README.md.tmp README.md
