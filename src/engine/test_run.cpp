#include "engine/test_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "model/observer.h"
#include "weights/tensor_names.h"

namespace tandem {
namespace {

// 8 · 2^-24: the rounding of one f32 operation with room for the transcendental functions on the way.
constexpr double kRoundingUnit = 8.0 / 16777216.0;

// Appends the rows of one sequence of every step.
class RunRecorder : public StepObserver {
 public:
  RunRecorder(const ModelConfig& config, TestRun& run, bool keep_router_reads)
      : config_(config), run_(run), keep_reads_(keep_router_reads) {}

  void begin_step(int64_t first_row, int64_t count) {
    first_row_ = first_row;
    count_ = count;
  }

  void on_tensor(Tap tap, int64_t layer, const MatrixView<const float>& rows) override {
    if (tap == Tap::kMlpIn && keep_reads_ && config_.is_moe(layer)) append(rows, run_.router_reads[layer]);
  }
  void on_router(int64_t layer, const MatrixView<const int32_t>& ids, const MatrixView<const float>&) override {
    append(ids, run_.routes[layer]);
  }

 private:
  template <class T>
  void append(const MatrixView<const T>& rows, std::vector<T>& to) const {
    for (int64_t i = 0; i < count_; ++i) {
      const T* const row = rows.row(first_row_ + i);
      to.insert(to.end(), row, row + rows.shape[1]);
    }
  }

  const ModelConfig& config_;
  TestRun& run_;
  const bool keep_reads_;
  int64_t first_row_ = 0;
  int64_t count_ = 0;
};

// The sequence under test and its neighbours, step by step.
class Runner {
 public:
  Runner(LoadedModel& model, std::span<const TokenId> tokens, const TestRunOptions& options)
      : model_(model), tokens_(tokens), options_(options), recorder_(model.config(), run_, options.keep_router_reads) {
    const size_t before = (options.neighbours.size() + 1) / 2;
    for (size_t i = 0; i < options.neighbours.size(); ++i) {
      if (i == before) add(tokens);
      add(options.neighbours[i]);
    }
    if (before >= options.neighbours.size()) add(tokens);
    tested_ = before;
    run_.vocab = model.config().vocab_size;
    const auto count = static_cast<int64_t>(tokens.size());
    first_logit_ = options.logit_rows > 0 ? std::max<int64_t>(count - options.logit_rows, 0) : 0;
  }

  Result<TestRun> run() {
    const auto start = std::chrono::steady_clock::now();
    const auto count = static_cast<int64_t>(tokens_.size());
    while (run_.rows < count) {
      TANDEM_RETURN_IF_ERROR(step());
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      if (options_.stop_after_seconds > 0 && seconds >= options_.stop_after_seconds) break;
    }
    run_.logit_rows = std::max<int64_t>(run_.rows - first_logit_, 0);
    return std::move(run_);
  }

 private:
  struct Sequence {
    std::span<const TokenId> tokens;
    SequenceCache cache;
    int64_t done = 0;
  };

  void add(std::span<const TokenId> tokens) { sequences_.push_back({tokens, SequenceCache(model_.cache_layout()), 0}); }

  // Rows before the first wanted logits are steps of their own: the head is the widest matrix there is.
  int64_t rows_of_step(const Sequence& sequence, bool tested) const {
    int64_t count = static_cast<int64_t>(sequence.tokens.size()) - sequence.done;
    if (options_.decode) return std::min<int64_t>(count, 1);
    if (options_.chunk > 0) count = std::min(count, options_.chunk);
    if (tested && sequence.done < first_logit_) count = std::min(count, first_logit_ - sequence.done);
    return count;
  }

  Status step() {
    StepPlan plan;
    std::vector<SequenceCacheView> views;
    int64_t row = 0, tested_row = 0, tested_count = 0;
    bool wants_logits = false;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      Sequence& sequence = sequences_[s];
      const int64_t count = rows_of_step(sequence, s == tested_);
      if (count == 0) continue;
      TANDEM_RETURN_IF_ERROR(sequence.cache.reserve(sequence.done + count));
      const auto begin = sequence.tokens.begin() + sequence.done;
      plan.tokens.insert(plan.tokens.end(), begin, begin + count);
      if (s == tested_) {
        tested_row = row;
        tested_count = count;
        wants_logits = sequence.done >= first_logit_;
      }
      plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                                .num_tokens = count,
                                .num_computed_tokens = sequence.done,
                                .mode = options_.decode ? StepMode::kDecode : StepMode::kPrefill,
                                .logits = s == tested_ && wants_logits ? LogitsWanted::kAll : LogitsWanted::kNone,
                                .captures = {}});
      views.push_back(sequence.cache.view());
      sequence.done += count;
      row += count;
    }
    recorder_.begin_step(tested_row, tested_count);
    const Result<MatrixView<float>> logits = model_.model().forward(model_.exec(), plan, views, &recorder_);
    if (!logits.is_ok()) return logits.status();
    for (int64_t i = 0; wants_logits && i < tested_count; ++i) {  // the only rows with logits
      const float* const values = logits.value().row(i);
      run_.logits.insert(run_.logits.end(), values, values + run_.vocab);
    }
    run_.rows += tested_count;
    return Status::ok();
  }

  LoadedModel& model_;
  std::span<const TokenId> tokens_;
  const TestRunOptions& options_;
  TestRun run_;
  RunRecorder recorder_;
  std::vector<Sequence> sequences_;
  size_t tested_ = 0;
  int64_t first_logit_ = 0;
};

// The longest sum of products of the text model.
int64_t longest_sum(const ModelConfig& config) {
  int64_t longest = config.hidden_size;
  for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) {
    if (tensor.run && tensor.expert <= 0 && tensor.shape.size() == 2) longest = std::max(longest, tensor.shape[1]);
  });
  return longest;
}

float element(const WeightView& weight, int64_t row, int64_t column) {
  const int64_t at = row * weight.cols + column;
  switch (weight.format) {
    case WeightFormat::kF32: return static_cast<const float*>(weight.data)[at];
    case WeightFormat::kF16: return to_f32(static_cast<const f16*>(weight.data)[at]);
    case WeightFormat::kBF16: return to_f32(static_cast<const bf16*>(weight.data)[at]);
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8: break;
  }
  TANDEM_CHECK(false, "a router is stored in floats");
  return 0;
}

struct ChoiceScore {
  double biased = 0.0;    // what experts are chosen by
  double rounding = 0.0;  // how far two f32 implementations may differ in it
};

// In f64 from the rows that the layer's norm read.
ChoiceScore choice_score(const LoadedModel& model, int64_t layer, std::span<const float> read, int32_t expert) {
  const ModelConfig& config = model.config();
  const LayerWeights& weights = model.weights().layers[static_cast<size_t>(layer)];
  const auto& moe = std::get<MoeLayerWeights>(weights.feed_forward);
  double squares = 0.0;
  for (const float x : read) squares += double{x} * x;
  const double width = static_cast<double>(read.size());
  const double scale = 1.0 / std::sqrt(squares / width + config.rms_norm_eps);
  double logit = 0.0, product_squares = 0.0;
  for (size_t i = 0; i < read.size(); ++i) {
    const double product = double{read[i]} * scale * double{weights.post_attention_layernorm[i]} *
                           double{element(moe.router, expert, static_cast<int64_t>(i))};
    logit += product;
    product_squares += product * product;
  }
  ChoiceScore score;
  score.biased = 1.0 / (1.0 + std::exp(-logit)) + double{moe.e_score_correction_bias[static_cast<size_t>(expert)]};
  // Every element of the row carries the rounding of the sublayers before it; σ' ≤ 1/4.
  const double steps = static_cast<double>(longest_sum(config) * 2 * (layer + 1));
  score.rounding = 0.25 * kRoundingUnit * std::sqrt(steps) * std::sqrt(product_squares);
  return score;
}

struct RouteDifference {
  int64_t row = 0;
  int64_t layer = 0;
  std::vector<int32_t> only_first, only_second;
};

std::optional<RouteDifference> find_route_difference(const TestRun& run, const TestRun& other) {
  const int64_t rows = std::min(run.rows, other.rows);
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& [layer, ids] : run.routes) {
      const auto found = other.routes.find(layer);
      if (found == other.routes.end()) continue;
      const auto k = static_cast<int64_t>(ids.size()) / run.rows;
      const std::span a = std::span(ids).subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
      const std::span b = std::span(found->second).subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
      if (std::ranges::equal(a, b)) continue;
      RouteDifference difference{row, layer, {}, {}};
      std::ranges::set_difference(a, b, std::back_inserter(difference.only_first));
      std::ranges::set_difference(b, a, std::back_inserter(difference.only_second));
      return difference;
    }
  }
  return std::nullopt;
}

void judge_route(const LoadedModel& model, const TestRun& run, const RouteDifference& difference,
                 RunDifference& result) {
  const auto k = static_cast<int64_t>(run.routes.at(difference.layer).size()) / run.rows;
  result.route_difference = cat("row ", difference.row, ", layer ", difference.layer, ": ",
                                difference.only_first.size(), " of ", k, " experts are chosen differently (expert ",
                                difference.only_first.front(), " for ", difference.only_second.front(), ")");
  const auto reads = run.router_reads.find(difference.layer);
  // Streamed weights are not there to be read now.
  if (reads == run.router_reads.end() || model.streamed() != nullptr ||
      model.config().topk_group < model.config().num_expert_group) {
    result.route_difference += "; whether they tie cannot be told here";
    return;
  }
  const auto width = static_cast<size_t>(model.config().hidden_size);
  const std::span<const float> read =
      std::span(reads->second).subspan(static_cast<size_t>(difference.row) * width, width);
  double low = INFINITY, high = -INFINITY, rounding = 0.0;
  for (const std::vector<int32_t>* experts : {&difference.only_first, &difference.only_second}) {
    for (const int32_t expert : *experts) {
      const ChoiceScore score = choice_score(model, difference.layer, read, expert);
      low = std::isnan(score.biased) ? -INFINITY : std::min(low, score.biased);
      high = std::max(high, score.biased);
      rounding = std::max(rounding, score.rounding);
    }
  }
  result.route_is_tie = std::isfinite(high - low) && high - low <= 2 * rounding;
  result.route_difference += std::isfinite(high - low)
                                 ? cat("; their scores differ by ", high - low, result.route_is_tie ? ", a tie" : "",
                                       " (rounding may make ", 2 * rounding, ")")
                                 : std::string("; a score is not finite");
}

}  // namespace

std::span<const float> TestRun::logits_of(int64_t row) const {
  const int64_t kept = row - (rows - logit_rows);
  return std::span(logits).subspan(static_cast<size_t>(kept * vocab), static_cast<size_t>(vocab));
}

std::vector<TokenId> self_test_tokens(int64_t vocab_size, int64_t count) {
  // Multiples of the golden ratio modulo 1 fill an interval evenly (Weyl).
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15u;  // of 2^64
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place = static_cast<uint64_t>(i + 1) * kGoldenRatio >> 32;
    tokens.emplace_back(static_cast<int32_t>(place * static_cast<uint64_t>(vocab_size) >> 32));
  }
  return tokens;
}

Result<TestRun> run_test_tokens(LoadedModel& model, std::span<const TokenId> tokens, const TestRunOptions& options) {
  return Runner(model, tokens, options).run();
}

std::optional<std::string> find_non_finite(const TestRun& run) {
  for (int64_t row = run.rows - run.logit_rows; row < run.rows; ++row) {
    const std::span<const float> logits = run.logits_of(row);
    for (size_t v = 0; v < logits.size(); ++v) {
      if (!std::isfinite(logits[v])) return cat("row ", row, ": logit ", v, " is ", logits[v]);
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_bit_difference(const TestRun& a, const TestRun& b) {
  const int64_t rows = std::min(a.rows, b.rows);
  for (int64_t row = std::max(a.rows - a.logit_rows, b.rows - b.logit_rows); row < rows; ++row) {
    const std::span<const float> first = a.logits_of(row);
    const std::span<const float> second = b.logits_of(row);
    if (std::memcmp(first.data(), second.data(), first.size_bytes()) == 0) continue;
    for (size_t v = 0; v < first.size(); ++v) {
      if (std::memcmp(&first[v], &second[v], sizeof(float)) != 0) {
        return cat("row ", row, ": logit ", v, " is ", first[v], " and ", second[v]);
      }
    }
  }
  return std::nullopt;
}

RunDifference compare_runs(const LoadedModel& model, const TestRun& run, const TestRun& other) {
  RunDifference result;
  int64_t end = std::min(run.rows, other.rows);
  if (const std::optional<RouteDifference> difference = find_route_difference(run, other)) {
    judge_route(model, run, *difference, result);
    end = difference->row;
  }
  double largest = 0.0;
  for (int64_t row = std::max(run.rows - run.logit_rows, other.rows - other.logit_rows); row < end; ++row) {
    const std::span<const float> a = run.logits_of(row);
    const std::span<const float> b = other.logits_of(row);
    ++result.rows_compared;
    for (size_t v = 0; v < a.size(); ++v) {
      largest = std::max({largest, std::abs(double{a[v]}), std::abs(double{b[v]})});
      const double difference = std::abs(double{a[v]} - double{b[v]});
      if (difference <= result.worst) continue;  // a NaN is none: it is the worst
      result.worst = std::isnan(difference) ? INFINITY : difference;
      result.where = cat("row ", row, ", logit ", v, ": ", a[v], " and ", b[v]);
    }
  }
  const auto sublayers = 2 * model.config().num_hidden_layers;
  result.tolerance = kRoundingUnit * std::sqrt(static_cast<double>(longest_sum(model.config()) * sublayers)) * largest;
  return result;
}

}  // namespace tandem
