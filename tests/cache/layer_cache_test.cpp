// The two ways in which a layer's cache advances.
#include "cache/layer_cache.h"

#include <gtest/gtest.h>

#include <array>

namespace tandem {
namespace {

TEST(LayerCache, AKdaStateStandsWhereTheStepLeftItOneVersionOn) {
  KdaState state{.position = 32, .state_version = 7};
  const int64_t before = begin_kda_state(state);
  EXPECT_EQ(before, 32);
  EXPECT_EQ(state.position, kStateInFlight);
  EXPECT_EQ(state.state_version, 7u);  // nothing has been written
  append_kda_state(state, before, 5);
  EXPECT_EQ(state.position, 37);
  EXPECT_EQ(state.state_version, 8u);
  append_kda_state(state, begin_kda_state(state), 0);
  EXPECT_EQ(state.position, 37);
  EXPECT_EQ(state.state_version, 9u);  // its memory was written, so a copy of before is stale
}

TEST(LayerCache, AKdaStateAdvancesOnceAStep) {
  KdaState state;
  EXPECT_DEATH(append_kda_state(state, 0, 1), "the step that marked it");
  const int64_t before = begin_kda_state(state);
  EXPECT_DEATH(append_kda_state(state, before, -1), "only advances");
  append_kda_state(state, before, 1);
  EXPECT_DEATH(append_kda_state(state, before, 1), "the step that marked it");
  begin_kda_state(state);
  EXPECT_DEATH(append_kda_state(state, begin_kda_state(state), 1), "only advances");  // a step on a failed step's state
}

TEST(LayerCache, MlaLatentsGrowWithinTheirPages) {
  std::array<std::byte, 8> memory = {};
  const std::array<std::byte*, 2> pages = {memory.data(), memory.data() + 4};
  MlaLatent latent{.pages = pages, .page_tokens = 4};
  append_mla_latent_page(latent, 3);
  EXPECT_EQ(latent.length, 3);
  append_mla_latent_page(latent, 0);
  EXPECT_EQ(latent.length, 3);
  append_mla_latent_page(latent, 5);  // over the end of a page, to the last row
  EXPECT_EQ(latent.length, 8);
  EXPECT_DEATH(append_mla_latent_page(latent, 1), "in the page table");
  EXPECT_DEATH(append_mla_latent_page(latent, -1), "in the page table");
  MlaLatent none;
  EXPECT_DEATH(append_mla_latent_page(none, 1), "in the page table");
}

TEST(LayerCache, LayersThatDisagreeAreNamed) {
  std::array<LayerCache, 2> layers = {KdaState{.position = 4}, MlaLatent{.pages = {}, .length = 4}};
  EXPECT_EQ(agreed_length({layers}).value(), 4);
  append_kda_state(std::get<KdaState>(layers[0]), begin_kda_state(std::get<KdaState>(layers[0])), 2);
  EXPECT_EQ(agreed_length({layers}).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
