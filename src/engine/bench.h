// engine/bench.h: prefill and decode rates of a loaded model, and the bytes and operations behind them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"
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

// Bytes read and operations done for one token: of a decode step of `sequences` at `depth` tokens, and one token of a
// prefill whose steps are `chunk` tokens (weights are read once a step; experts as many as are expected distinct).
double decode_bytes_per_token(const LoadedModel& model, double depth, int64_t sequences = 1);
double prefill_bytes_per_token(const LoadedModel& model, int64_t tokens, int64_t chunk);
// A (query, key) pair of MLA costs what its form computes: absorbed in decode, expanded in prefill, where the keys and
// values of earlier chunks are rebuilt in every chunk.
double decode_flops_per_token(const LoadedModel& model, double depth);
double prefill_flops_per_token(const LoadedModel& model, int64_t tokens, int64_t chunk);

// Cases in order: prefill, then a decode for each depth and number of sequences. Random tokens from a fixed seed.
Status run_bench(LoadedModel& model, const BenchOptions& options, FunctionRef<void(const BenchCase&)> on_case);

}  // namespace tandem
