// engine/test_run.h: one run of given tokens through a model with everything kept that a comparison of two runs needs,
// and that comparison.
//
//   Two f32 implementations add in different orders, so their logits agree within rounding only; and where two experts'
//   scores differ by less than rounding, they may choose differently, after which nothing need agree. A comparison
//   therefore looks at the chosen experts first: rows up to the first difference are held to the tolerance, and the
//   difference itself is held to be a tie, recomputed in f64 from what the router read.
//   Threading: engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/loaded_model.h"

namespace tandem {

struct TestRun {
  int64_t rows = 0;        // tokens that were run
  int64_t logit_rows = 0;  // the last ones, whose logits are here
  int64_t vocab = 0;
  std::vector<float> logits;                       // [logit_rows, vocab]
  std::map<int64_t, std::vector<int32_t>> routes;  // of each MoE layer: [rows, k] ids, ascending in a row
  std::map<int64_t, std::vector<float>>
      router_reads;  // of each MoE layer: [rows, D], what its norm reads; may be empty

  std::span<const float> logits_of(int64_t row) const;  // a row of the run, one of the last logit_rows
};

// Tokens that depend on the vocabulary alone, spread over all of it.
std::vector<TokenId> self_test_tokens(int64_t vocab_size, int64_t count);

struct TestRunOptions {
  int64_t chunk = 0;       // tokens of one prefill step; 0: all
  bool decode = false;     // a token at a time, in decode mode
  int64_t logit_rows = 0;  // 0: all
  bool keep_router_reads = false;
  // Other sequences in the same step, before and after it.
  std::vector<std::vector<TokenId>> neighbours = {};
  double stop_after_seconds = 0;  // no further step is begun then; 0: never. `rows` says how far it came
};
Result<TestRun> run_test_tokens(LoadedModel& model, std::span<const TokenId> tokens, const TestRunOptions& options);

// The first logit that is not a finite number, in words; none: all are.
std::optional<std::string> find_non_finite(const TestRun& run);

// The first row whose bits differ, in words; none: none does. The shorter run decides how many rows are compared.
std::optional<std::string> find_bit_difference(const TestRun& a, const TestRun& b);

struct RunDifference {
  int64_t rows_compared = 0;
  double worst = 0.0;      // largest difference of a logit in them
  double tolerance = 0.0;  // 8 · 2^-24 · √(longest sum · sublayers) · largest logit
  std::string where;       // of the worst
  bool is_within() const { return worst <= tolerance; }
  // Where experts were chosen differently: "row 3, layer 7: …"; empty: nowhere.
  std::string route_difference;
  bool route_is_tie = true;  // the scores of the exchanged experts differ by rounding only, or that cannot be told
};
// `run` with keep_router_reads, so that a tie can be told. `other` may lack routes: then only the logits are compared.
RunDifference compare_runs(const LoadedModel& model, const TestRun& run, const TestRun& other);

}  // namespace tandem
