// What verification stands on: the paths of prefixes, and the comparison that names the first differing element.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "engine/serving/cache_compare.h"
#include "engine/serving_support.h"

namespace tandem {
namespace {

constexpr StepMode kPrefill = StepMode::kPrefill;
constexpr StepMode kDecode = StepMode::kDecode;

TEST(ServingPath, SplitsDoNotMatterAndModesDo) {
  ComputePath a, b;
  a.append(0, 96, kPrefill);
  a.append(96, 5, kPrefill);
  a.append(101, 1, kDecode);
  a.append(102, 1, kDecode);
  b.append(0, 101, kPrefill);
  b.append(101, 2, kDecode);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.spans, (std::vector<PathSpan>{{0, kPrefill}, {101, kDecode}}));
  EXPECT_EQ(a.mode_at(100), kPrefill);
  EXPECT_EQ(a.mode_at(101), kDecode);
  EXPECT_EQ(a.end_of_span(7), 101);
  EXPECT_EQ(a.end_of_span(101), 103);
  EXPECT_EQ(a.first(101).spans.size(), 1u);
  EXPECT_EQ(a.first(102).spans.size(), 2u);
  EXPECT_EQ(a.first(102).length, 102);
}

TEST(ServingPath, WhatCannotBeRepeatedIsUnknown) {
  ComputePath off_grid, gap, unknown;
  off_grid.append(0, 8, kDecode);
  off_grid.append(8, 8, kPrefill);
  EXPECT_FALSE(off_grid.is_known);
  gap.append(16, 16, kPrefill);
  EXPECT_FALSE(gap.is_known);
  for (int64_t i = 0; i < 300; ++i) unknown.append(i * 16, 16, i % 2 == 0 ? kPrefill : kDecode);
  EXPECT_FALSE(unknown.is_known);
  EXPECT_TRUE(unknown.spans.empty());
}

TEST(ServingPath, TwoPathsToOnePrefixLeaveItOpenUntilTheCacheHasLostIt) {
  ComputePath prefill, decode;
  prefill.append(0, 64, kPrefill);
  decode.append(0, 64, kDecode);
  PathBook book(3);
  const PrefixHash key{.low = 1, .high = 2};
  EXPECT_EQ(book.find(key), std::nullopt);
  book.note(key, prefill);
  book.note(key, prefill);
  EXPECT_EQ(book.find(key), prefill);
  book.note(key, decode);
  EXPECT_EQ(book.find(key), std::nullopt);
  book.note(key, prefill);
  EXPECT_EQ(book.find(key), std::nullopt);
  book.erase(key);
  book.note(key, decode);
  EXPECT_EQ(book.find(key), decode);
  for (uint64_t i = 10; i < 12; ++i) book.note({.low = i, .high = 0}, prefill);
  EXPECT_EQ(book.find(key), decode);  // touched
  book.note({.low = 12, .high = 0}, prefill);
  EXPECT_EQ(book.find({.low = 10, .high = 0}), std::nullopt);  // the longest untouched
  EXPECT_EQ(book.find(key), decode);
}

class ServingCompareTest : public ::testing::TestWithParam<DType> {
 protected:
  ServingCompareTest() {
    LoadOptions options;
    options.cache_dtype = GetParam();
    auto model = LoadedModel::load(test::tiny_dir(), options);
    TANDEM_CHECK(model.is_ok(), model.status().message());
    model_ = std::move(model).value();
    const test::Tokens tokens = test::random_prompt(70, 1);
    for (SequenceCache* cache : {&a_.emplace(model_->cache_layout()), &b_.emplace(model_->cache_layout())}) {
      TANDEM_CHECK(cache->reserve(70).is_ok(), "room");
      StepPlan plan;
      plan.tokens = tokens;
      plan.sequences.push_back({.cache = 0,
                                .num_tokens = 70,
                                .num_computed_tokens = 0,
                                .mode = kPrefill,
                                .logits = LogitsWanted::kNone,
                                .captures = {}});
      const std::array<SequenceCacheView, 1> views = {cache->view()};
      TANDEM_CHECK(model_->model().forward(model_->exec(), plan, views).is_ok(), "a step");
    }
  }
  std::optional<CacheMismatch> latents(int64_t begin, int64_t end) {
    return compare_latents(model_->cache_layout(), a_->view(), b_->view(), begin, end);
  }
  std::optional<CacheMismatch> states() { return compare_states(model_->cache_layout(), a_->view(), b_->view(), 70); }
  // The last layer of the kind, in b.
  template <class Kind>
  std::pair<int64_t, Kind*> last() {
    const auto layers = b_->view().layers;
    for (size_t l = layers.size(); l-- > 0;) {
      if (auto* found = std::get_if<Kind>(&layers[l])) return {static_cast<int64_t>(l), found};
    }
    return {-1, nullptr};
  }
  void flip(void* memory, int64_t element) {
    static_cast<std::byte*>(memory)[element * dtype_size(GetParam())] ^= std::byte{1};
  }

  std::unique_ptr<LoadedModel> model_;
  std::optional<SequenceCache> a_, b_;
};

TEST_P(ServingCompareTest, EveryPlaceIsSeenAndNamed) {
  EXPECT_FALSE(latents(0, 70).has_value());
  EXPECT_FALSE(states().has_value());
  const auto [kda, state] = last<KdaState>();
  const CacheLayout& layout = model_->cache_layout();
  for (const auto& [memory, element, what] :
       {std::tuple{state->conv, layout.conv_elements() - 1, "conv_history"},
        std::tuple{state->recurrent, int64_t{0}, "kda_state"},
        std::tuple{state->recurrent, layout.recurrent_elements() - 1, "kda_state"}}) {
    flip(memory, element);
    const auto mismatch = states();
    ASSERT_TRUE(mismatch.has_value()) << what;
    EXPECT_EQ(mismatch->what, what);
    EXPECT_EQ(mismatch->layer, kda);
    EXPECT_EQ(mismatch->element, element);
    EXPECT_EQ(mismatch->position, 70);
    EXPECT_NE(mismatch->expected, mismatch->found);
    flip(memory, element);
  }
  const auto [mla, latent] = last<MlaLatent>();
  for (const int64_t position : {int64_t{0}, int64_t{63}, int64_t{64}, int64_t{69}}) {
    std::byte* page = latent->pages[static_cast<size_t>(position / latent->page_tokens)];
    void* row = page + position % latent->page_tokens * layout.latent_row_bytes();
    flip(row, layout.latent_width - 1);
    const auto mismatch = latents(0, 70);
    ASSERT_TRUE(mismatch.has_value());
    EXPECT_EQ(mismatch->layer, mla);
    EXPECT_EQ(mismatch->position, position);
    EXPECT_EQ(mismatch->element, layout.latent_width - 1);
    EXPECT_FALSE(latents(0, position).has_value());
    EXPECT_FALSE(latents(position + 1, 70).has_value());
    flip(row, layout.latent_width - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ServingCompareTest, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& test) { return std::string(dtype_name(test.param)); });

}  // namespace
}  // namespace tandem
