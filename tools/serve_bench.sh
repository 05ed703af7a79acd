#!/usr/bin/env bash
# Measures `tandem serve` and prints one JSON document: tools/serve_bench.sh <model folder> [lengths] [context]
#   time to first token cold and warm; 16 streams beside the bare engine, taking turns; half load with and without
#   verification; later turns of chats with and without --deterministic.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model="$1"
lengths="${2:-1024,4096,16384}"
context="${3:-20000}"
name="$(basename "$model")"
work="$(mktemp -d)"
server=""
trap '[[ -z "$server" ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

start() { # start [flags…]: a server for a while; its port in $port
  build/tandem serve "$model" --port 0 --json --quiet --context "$context" "$@" >"$work/address" 2>"$work/log" &
  server=$!
  port=""
  while [[ -z "$port" ]]; do
    kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    port="$(jq -r .url "$work/address" 2>/dev/null | sed 's/.*://' || true)"
    sleep 0.1
  done
}
stop() {
  kill "$server"
  wait "$server" || { cat "$work/log" >&2; exit 1; }
  server=""
}
load() { build/bench/serve_load --port "$port" --model "$name" "$@"; }

start
load ttft --lengths "$lengths" --repeat "${REPEAT:-5}" >"$work/ttft.json"
stop

for round in 1 2 3; do
  build/tandem bench "$model" -p 0 -n 64 --depth 128 --sequences 16 --repeat 1 --json 2>/dev/null >"$work/bare.$round.json"
  start
  load decode --streams 16 --prompt-tokens 128 --tokens 192 --repeat 1 >"$work/served.$round.json"
  stop
done

start
load steady --rate 1000 --seconds 0.001 --prompt-tokens 512 --tokens 32 >/dev/null # warm
alone="$(load steady --rate 0.2 --seconds 5 --prompt-tokens 512 --tokens 32 | jq '.ttft_seconds.median + 31 * .tpot_seconds.median')"
stop
rate="$(jq -n "0.5 / $alone")"
for round in 1 2 3; do
  for verify in 0 1; do
    start --verify-cache "$verify"
    load steady --rate "$rate" --seconds "${STEADY_SECONDS:-20}" --prompt-tokens 512 --tokens 32 >"$work/steady.$verify.$round.json"
    curl -sS "http://127.0.0.1:$port/metrics" | sed -n 's/^tandem:\(verify_[a-z_]*\){[^,}]*,*\(.*\)} /\1 \2 /p' >"$work/verify.$verify.$round"
    stop
  done
done

# What --deterministic costs: a later turn prefills the reply before it.
for round in 1 2 3; do
  for flag in "" --deterministic; do
    # shellcheck disable=SC2086  # no flag is no argument
    start $flag
    load turns --chats 2 --turns 4 --words 100 --tokens 256 >"$work/turns.${flag:-shared}.$round.json"
    stop
  done
done

jq -n --arg model "$name" --arg commit "$(git describe --always --dirty 2>/dev/null || echo unknown)" \
  --arg machine "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores" \
  --slurpfile ttft "$work/ttft.json" --slurpfile bare <(cat "$work"/bare.*.json) --slurpfile served <(cat "$work"/served.*.json) \
  --slurpfile off <(cat "$work"/steady.0.*.json) --slurpfile on <(cat "$work"/steady.1.*.json) \
  --slurpfile shared <(cat "$work"/turns.shared.*.json) --slurpfile deterministic <(cat "$work"/turns.--deterministic.*.json) \
  --rawfile verify <(cat "$work"/verify.1.*) '
  def median: sort | .[length / 2 | floor];
  # The aims, each beside what was measured: warm ≤ 5 % of cold + one hash unit of prefill; ≤ 3 % a token; ≤ 2 % under verification.
  def warm_aims: [$ttft[0].cases[] | {prompt_tokens, same: (.same_prompt_seconds.median <= .bound_seconds), extended: (.extended_seconds.median <= .bound_seconds)}];
  {model: $model, commit: $commit, machine: $machine, command: "tools/serve_bench.sh", ttft: $ttft[0].cases, ttft_within_bound: warm_aims,
   sixteen_streams: {bare_engine_tokens_per_second: [$bare[].tok_s], served_tokens_per_second: [$served[].tokens_per_second.median],
     overhead_by_round: [range(0; $bare | length) as $i | $bare[$i].tok_s / $served[$i].tokens_per_second.median - 1],
     overhead_median: ([range(0; $bare | length) as $i | $bare[$i].tok_s / $served[$i].tokens_per_second.median - 1] | median)},
   verification_at_half_load: {rate_per_second: $off[0].rate_per_second,
     ttft_seconds_off: [$off[].ttft_seconds.median], ttft_seconds_on: [$on[].ttft_seconds.median],
     tpot_seconds_off: [$off[].tpot_seconds.median], tpot_seconds_on: [$on[].tpot_seconds.median],
     ttft_rise_median: ([range(0; $on | length) as $i | $on[$i].ttft_seconds.median / $off[$i].ttft_seconds.median - 1] | median),
     tpot_rise_median: ([range(0; $on | length) as $i | $on[$i].tpot_seconds.median / $off[$i].tpot_seconds.median - 1] | median),
     counters: ($verify | split("\n") | map(select(. != "")))},
   deterministic: {mean_reply_tokens: $shared[0].mean_reply_tokens,
     later_turn_seconds_shared: [$shared[].later_turn_seconds.median],
     later_turn_seconds_deterministic: [$deterministic[].later_turn_seconds.median],
     cached_share_shared: (([$shared[].later_turn_cached_tokens] | add) / ([$shared[].later_turn_prompt_tokens] | add)),
     cached_share_deterministic: (([$deterministic[].later_turn_cached_tokens] | add) / ([$deterministic[].later_turn_prompt_tokens] | add))}}'
