// tests/stream/streamed_model.h: a checkpoint folder bound for streaming, with a store of so many slots.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "stream/direct_file.h"
#include "stream/expert_store.h"

namespace tandem::test {

class StreamedModel {
 public:
  explicit StreamedModel(const std::string& dir, ExpertStore::Options options) {
    Result<ModelConfig> config = load_model_config(dir);
    TANDEM_CHECK(config.is_ok(), config.status().message());
    config_ = std::move(config).value();
    Result<Checkpoint> checkpoint = Checkpoint::open(dir);
    TANDEM_CHECK(checkpoint.is_ok(), checkpoint.status().message());
    checkpoint_.emplace(std::move(checkpoint).value());
    Result<ModelWeights> weights = bind_model_weights(*checkpoint_, config_, {.streamed_experts = true});
    TANDEM_CHECK(weights.is_ok(), weights.status().message());
    weights_ = std::move(weights).value();
    Result<std::unique_ptr<ExpertStore>> store =
        ExpertStore::create(*checkpoint_, config_, weights_, std::move(options));
    TANDEM_CHECK(store.is_ok(), store.status().message());
    store_ = std::move(store).value();
    model_.emplace(config_, weights_, ModelOptions{}, store_.get());
    forbid_mapped_experts();
  }

  const ModelConfig& config() const { return config_; }
  const Model& model() const { return *model_; }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  ExpertStore& store() { return *store_; }
  SequenceCache new_cache() const { return SequenceCache(make_cache_layout(config_, DType::kF32, 16)); }

 private:
  // A read of an expert where the file is mapped ends the test: only the store's memory may be used.
  void forbid_mapped_experts() {
    for (const LayerWeights& layer : weights_.layers) {
      const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward);
      if (moe == nullptr) continue;
      for (const ExpertWeights& expert : moe->experts) {
        for (const WeightView* view : {&expert.w1, &expert.w2, &expert.w3}) {
          const auto begin = direct_ceil(reinterpret_cast<uint64_t>(view->data));
          const auto end = direct_floor(reinterpret_cast<uint64_t>(view->data) +
                                        static_cast<uint64_t>(view->rows * view->row_bytes()));
          if (end <= begin) continue;
          TANDEM_CHECK(::mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) == 0, "mprotect");
        }
      }
    }
  }

  ModelConfig config_;
  std::optional<Checkpoint> checkpoint_;
  ModelWeights weights_;
  std::unique_ptr<ExpertStore> store_;
  std::optional<Model> model_;
};

// Every row's logits of one or several sequences that run together, step by step; decode where a step has one row.
// Stops at the first failure.
inline Result<std::vector<float>> run_together(const ExecContext& ctx, const Model& model,
                                               std::vector<SequenceCache>& caches,
                                               const std::vector<std::vector<TokenId>>& sequences, int64_t chunk,
                                               int64_t decoded) {
  std::vector<float> all;
  std::vector<int64_t> at(sequences.size(), 0);
  while (true) {
    StepPlan plan;
    std::vector<SequenceCacheView> views;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto length = static_cast<int64_t>(sequences[s].size());
      if (at[s] == length) continue;
      const bool prefill = at[s] < length - decoded;
      const int64_t rows = prefill ? std::min(chunk, length - decoded - at[s]) : 1;
      TANDEM_CHECK(caches[s].reserve(length).is_ok(), "reserve");
      plan.tokens.insert(plan.tokens.end(), sequences[s].begin() + at[s], sequences[s].begin() + at[s] + rows);
      plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                                .num_tokens = rows,
                                .num_computed_tokens = at[s],
                                .mode = prefill ? StepMode::kPrefill : StepMode::kDecode,
                                .logits = LogitsWanted::kAll,
                                .captures = {}});
      views.push_back(caches[s].view());
      at[s] += rows;
    }
    if (plan.tokens.empty()) return all;
    const Result<MatrixView<float>> logits = model.forward(ctx, plan, views);
    if (!logits.is_ok()) return logits.status();
    all.insert(all.end(), logits.value().data, logits.value().data + logits.value().shape[0] * logits.value().shape[1]);
  }
}

}  // namespace tandem::test
