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
#include "stream/trunk_stream.h"

namespace tandem::test {

class StreamedModel {
 public:
  // No slots: the experts stay where they are mapped. `trunk`: the layers are streamed, too.
  explicit StreamedModel(const std::string& dir, ExpertStore::Options options,
                         std::optional<DirectReaderOptions> trunk = std::nullopt) {
    Result<ModelConfig> config = load_model_config(dir);
    TANDEM_CHECK(config.is_ok(), config.status().message());
    config_ = std::move(config).value();
    Result<Checkpoint> checkpoint = Checkpoint::open(dir);
    TANDEM_CHECK(checkpoint.is_ok(), checkpoint.status().message());
    checkpoint_.emplace(std::move(checkpoint).value());
    const bool streams_experts = options.num_slots > 0;
    Result<ModelWeights> weights = bind_model_weights(*checkpoint_, config_, {.streamed_experts = streams_experts});
    TANDEM_CHECK(weights.is_ok(), weights.status().message());
    weights_ = std::move(weights).value();
    if (streams_experts) {
      forbid_mapped_experts();
      Result<std::unique_ptr<ExpertStore>> store =
          ExpertStore::create(*checkpoint_, config_, weights_, std::move(options));
      TANDEM_CHECK(store.is_ok(), store.status().message());
      store_ = std::move(store).value();
    }
    if (trunk) {
      forbid_mapped_layers();
      Result<std::unique_ptr<TrunkStream>> stream = TrunkStream::create(*checkpoint_, weights_, *trunk);
      TANDEM_CHECK(stream.is_ok(), stream.status().message());
      trunk_ = std::move(stream).value();
    }
    model_.emplace(config_, weights_, ModelOptions{}, store_.get(), trunk_.get());
  }

  const ModelConfig& config() const { return config_; }
  const Model& model() const { return *model_; }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  ExpertStore& store() { return *store_; }
  TrunkStream& trunk() { return *trunk_; }
  SequenceCache new_cache() const { return SequenceCache(make_cache_layout(config_, DType::kF32, 16)); }

 private:
  // A read where the file is mapped ends the test: only the streams' memory may be used.
  static void forbid(const WeightView& view) {
    const auto address = reinterpret_cast<uint64_t>(view.data);
    const uint64_t begin = direct_ceil(address);
    const uint64_t end = direct_floor(address + static_cast<uint64_t>(view.rows * view.row_bytes()));
    if (view.empty() || end <= begin) return;
    TANDEM_CHECK(::mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_NONE) == 0, "mprotect");
  }
  void forbid_mapped_experts() {
    for (const LayerWeights& layer : weights_.layers) {
      const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward);
      if (moe == nullptr) continue;
      for (const ExpertWeights& expert : moe->experts) {
        for (const WeightView* view : {&expert.w1, &expert.w2, &expert.w3}) forbid(*view);
      }
    }
  }
  void forbid_mapped_layers() {
    const auto forbid_if_mapped = [this](const WeightView& view) {
      if (checkpoint_->place_of(view.data)) forbid(view);
    };
    if (!config_.tie_word_embeddings) forbid_if_mapped(weights_.lm_head);
    for (const LayerWeights& layer : weights_.layers) {
      if (const auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
        for (const WeightView* view : {&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->o_proj}) forbid_if_mapped(*view);
      } else {
        const auto& mla = std::get<MlaLayerWeights>(layer.attention);
        for (const WeightView* view : {&mla.kv_a_proj, &mla.kv_b_proj, &mla.o_proj}) forbid_if_mapped(*view);
      }
    }
  }

  ModelConfig config_;
  std::optional<Checkpoint> checkpoint_;
  ModelWeights weights_;
  std::unique_ptr<ExpertStore> store_;
  std::unique_ptr<TrunkStream> trunk_;
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
