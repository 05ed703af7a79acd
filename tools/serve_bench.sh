#!/usr/bin/env bash
# Measures `tandem serve` and prints one JSON document: tools/serve_bench.sh <model folder> [lengths] [context]
#   ttft           time to first token, cold and warm
#   streams        what a step of 16 streams costs the server beyond the bare engine's; greedy and sampled
#   verify         half load with and without verification, the same requests at the same times, taking turns
#   deterministic  later turns of chats with and without --deterministic
# PARTS names those wanted (all four). Shorter or longer: REPEAT, ROUNDS, VERIFY_ROUNDS, STEADY_SECONDS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model="$1"
lengths="${2:-1024,4096,16384}"
context="${3:-20000}"
parts=" ${PARTS:-ttft streams verify deterministic} "
rounds="${ROUNDS:-7}"
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
wants() { [[ "$parts" == *" $1 "* ]]; }

measure_ttft() {
  start
  load ttft --lengths "$lengths" --repeat "${REPEAT:-5}" | jq '
    # The aim beside what was measured: warm ≤ 5 % of cold + one hash unit of prefill.
    {ttft: .cases, ttft_within_bound: [.cases[] | {prompt_tokens,
      same: (.same_prompt_seconds.median <= .bound_seconds), extended: (.extended_seconds.median <= .bound_seconds)}]}'
  stop
}

measure_streams() { # The aim: ≤ 3 % a token
  build/bench/serve_overhead "$model" --rounds "$rounds" >"$work/greedy"
  build/bench/serve_overhead "$model" --rounds 2 --temperature 0.8 --top-p 0.95 >"$work/sampled"
  start
  load decode --streams 16 --prompt-tokens 128 --tokens 128 --repeat 3 >"$work/clients"
  stop
  jq -n --slurpfile greedy "$work/greedy" --slurpfile sampled "$work/sampled" --slurpfile clients "$work/clients" \
    '{sixteen_streams: $greedy[0], sixteen_streams_sampled: $sampled[0],
      sixteen_streams_clients_tokens_per_second: $clients[0].tokens_per_second}'
}

measure_verify() { # The aim: first token and time per token ≤ 2 % later
  local alone rate duration round verify
  start
  load steady --rate 1000 --seconds 0.001 --prompt-tokens 512 --tokens 32 >/dev/null # warm
  alone="$(load steady --rate 0.2 --seconds 5 --prompt-tokens 512 --tokens 32 | jq '.ttft_seconds.median + 31 * .tpot_seconds.median')"
  stop
  rate="$(jq -n "0.5 / $alone")"
  duration="${STEADY_SECONDS:-$(jq -n "[60, 30 / $rate + 1] | max")}"
  for ((round = 1; round <= ${VERIFY_ROUNDS:-3}; ++round)); do
    for verify in $((round % 2)) $(((round + 1) % 2)); do
      start --verify-cache "$verify"
      load steady --rate "$rate" --seconds "$duration" --prompt-tokens 512 --tokens 32 --seed "$round" >"$work/steady.$verify.$round.json"
      curl -sS "http://127.0.0.1:$port/metrics" >"$work/metrics"
      stop
      [[ "$verify" == 0 ]] || sed -n 's/^tandem:\(verify_[a-z_]*\|compute_seconds_total\){\(.*\)} /\1 \2 /p' "$work/metrics" |
        sed 's/model_name="[^"]*",\?//; s/result="\([a-z]*\)"/\1/; s/  */ /g' |
        jq -Rn '[inputs | split(" ") | {(.[:-1] | map(select(. != "")) | join("_")): .[-1] | tonumber}] | add' >"$work/verify.$round.json"
    done
  done
  jq -n --slurpfile off <(cat "$work"/steady.0.*.json) --slurpfile on <(cat "$work"/steady.1.*.json) --slurpfile counters <(cat "$work"/verify.*.json) '
    def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;
    def spread: {median: median, min: min, max: max};
    # The same request with verification and without, over all of a round.
    def rises($key): [range(0; $on | length) as $r | [range(0; $on[$r][$key] | length) as $i | $on[$r][$key][$i] / $off[$r][$key][$i] - 1]];
    def rise($key): rises($key) | {median: (add | median), by_round: map(median), quartiles: (add | sort | [.[length / 4 | floor], .[3 * length / 4 | floor]])};
    {verification_at_half_load: {rate_per_second: $off[0].rate_per_second, requests_a_run: $off[0].requests, rounds: ($on | length),
      ttft_seconds_off: [$off[].ttft_seconds.median], ttft_seconds_on: [$on[].ttft_seconds.median],
      tpot_seconds_off: [$off[].tpot_seconds.median], tpot_seconds_on: [$on[].tpot_seconds.median],
      ttft_rise: rise("ttft_seconds_each"), tpot_rise: rise("tpot_seconds_each"),
      achieved_rate: ([$counters[].verify_achieved_rate] | spread),
      share_of_compute: ([$counters[] | .verify_seconds_total / .compute_seconds_total] | spread), counters: $counters}}'
}

measure_deterministic() { # what it costs: a later turn prefills the reply before it
  local round flag
  for round in 1 2 3; do
    for flag in "" --deterministic; do
      # shellcheck disable=SC2086  # no flag is no argument
      start $flag
      load turns --chats 2 --turns 4 --words 100 --tokens 256 >"$work/turns.${flag:-shared}.$round.json"
      stop
    done
  done
  jq -n --slurpfile shared <(cat "$work"/turns.shared.*.json) --slurpfile deterministic <(cat "$work"/turns.--deterministic.*.json) '
    {deterministic: {mean_reply_tokens: $shared[0].mean_reply_tokens,
      later_turn_seconds_shared: [$shared[].later_turn_seconds.median],
      later_turn_seconds_deterministic: [$deterministic[].later_turn_seconds.median],
      cached_share_shared: (([$shared[].later_turn_cached_tokens] | add) / ([$shared[].later_turn_prompt_tokens] | add)),
      cached_share_deterministic: (([$deterministic[].later_turn_cached_tokens] | add) / ([$deterministic[].later_turn_prompt_tokens] | add))}}'
}

for part in ttft streams verify deterministic; do
  if wants "$part"; then "measure_$part" >"$work/part.$part"; fi
done
jq -s --arg model "$name" --arg commit "$(git describe --always --dirty 2>/dev/null || echo unknown)" \
  --arg machine "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores" \
  '{model: $model, commit: $commit, machine: $machine, command: "tools/serve_bench.sh"} + add' "$work"/part.*
