// engine/bench.h: prefill and decode rates of a loaded model, and the bytes and operations behind them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
#include "cost/machine.h"
#include "cost/step_cost.h"
#include "engine/loaded_model.h"

namespace tandem {

struct BenchOptions {
  int64_t prompt_tokens = 512;           // p; 0: no prefill case
  int64_t decode_tokens = 128;           // n; 0: no decode case
  std::vector<int64_t> depths = {0};     // tokens in the cache before a decode case
  std::vector<int64_t> sequences = {1};  // decoded together in one step; one decode case for each, at every depth
  int64_t repeat = 5;
  int64_t prefill_chunk = 512;
};

struct BenchCase {
  bool is_prefill = false;
  int64_t tokens = 0;     // p or n, of each sequence
  int64_t depth = 0;      // of a decode case
  int64_t sequences = 1;  // of a decode case
  double tok_s = 0.0;     // median over the repeats; all sequences together
  double min_tok_s = 0.0;
  double max_tok_s = 0.0;
  double bytes_per_token = 0.0;  // weights, states and latents touched, at the case's mean depth
  double flops_per_token = 0.0;
  double read_gb_s = 0.0;  // bytes_per_token · tok_s
  double gflop_s = 0.0;
  PhaseTimes phases;                       // of all repeats together
  double seconds = 0.0;                    // likewise
  std::optional<ExpertStoreStats> stream;  // likewise; where experts are streamed
};

// Bytes read and operations done for one token (cost/step_cost.h): of a decode step of `sequences` at `depth` tokens,
// and of a prefill in steps of `chunk` tokens with the logits of its last one, as prompts are run.
ModelCost bench_cost(const LoadedModel& model);
double decode_bytes_per_token(const ModelCost& cost, double depth, int64_t sequences = 1);
double decode_flops_per_token(const ModelCost& cost, double depth);
double prefill_bytes_per_token(const ModelCost& cost, int64_t tokens, int64_t chunk);
double prefill_flops_per_token(const ModelCost& cost, int64_t tokens, int64_t chunk);

// Tokens a second that `tandem plan` predicts for the case on a machine with these ceilings; all weights in memory.
double predicted_tok_s(const ModelCost& cost, const BenchCase& result, int64_t prefill_chunk, const Machine& machine);

// Cases in order: prefill, then a decode for each depth and number of sequences. Random tokens from a fixed seed.
Status run_bench(LoadedModel& model, const BenchOptions& options, FunctionRef<void(const BenchCase&)> on_case);

}  // namespace tandem
