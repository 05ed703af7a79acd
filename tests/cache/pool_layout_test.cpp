// Sizes of the pool against the tables of systems.md §1.2–§1.4, row by row.
#include "cache/pool_layout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/cat.h"
#include "cache/fake_model.h"

namespace tandem {
namespace {

// K3 on one device: 93 layers, MLA at 4, 8, …, 92, 93 counted from 1.
CacheLayout k3_layout(DType dtype, int64_t tp = 1) {
  CacheLayout layout;
  for (int64_t l = 1; l <= 93; ++l) {
    layout.kinds.push_back(l % 4 == 0 || l == 93 ? LayerKind::kMla : LayerKind::kKda);
  }
  layout.dtype = dtype;
  layout.kda_heads = 96 / tp;
  layout.kda_head_dim = 128;
  layout.conv_rows = 3;
  layout.conv_channels = 3 * 96 / tp * 128;
  layout.latent_width = 576;
  return layout;
}

TEST(PoolLayout, PageSizesOfTheTable) {
  struct Row {
    int64_t state, token;  // bytes a layer and rank
    int64_t at_512, at_128;
    double waste_512, waste_128;  // percent
  };
  // BF16 head record 35 072 bytes, FP32 67 840 (its conv history in BF16), × 96 heads / TP.
  const Row rows[] = {
      {35072 * 96, 576, 6144, 5888, 4.9, 0.7},      {35072 * 96 / 2, 576, 3072, 2944, 4.9, 0.7},
      {35072 * 96 / 4, 576, 1536, 1536, 4.9, 4.9},  {35072 * 96 / 8, 576, 1024, 768, 28.6, 4.9},
      {67840 * 96 / 8, 576, 1536, 1536, 8.0, 8.0},  {67840 * 96 / 2, 576, 6144, 5760, 8.0, 1.9},
      {67840 * 96 / 8, 1152, 1024, 768, 31.0, 8.0}, {35072 * 96 / 8, 1152, 512, 384, 28.6, 4.9},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(cat(row.state, " bytes of state, ", row.token, " a token"));
    for (const auto& [unit, tokens, waste] :
         {std::tuple(512, row.at_512, row.waste_512), std::tuple(128, row.at_128, row.waste_128)}) {
      const PageSize page = choose_page_size(row.state, row.token, unit);
      EXPECT_EQ(page.page_tokens, tokens);
      EXPECT_EQ(page.page_bytes, tokens * row.token);
      EXPECT_EQ(page.padding_bytes, page.page_bytes - row.state);
      const double percent = 100.0 * static_cast<double>(page.padding_bytes) / static_cast<double>(page.page_bytes);
      EXPECT_NEAR(percent, waste, waste == 31.0 ? 0.5 : 0.06);  // printed to two digits there
    }
  }
}

TEST(PoolLayout, PageIsTheSmallestThatHoldsAState) {
  for (int64_t state = 0; state < 4000; state += 37) {
    for (const int64_t token : {1, 74, 576}) {
      for (const int64_t unit : {16, 128, 512}) {
        const PageSize page = choose_page_size(state, token, unit);
        EXPECT_EQ(page.page_tokens % unit, 0);
        EXPECT_GE(page.page_bytes, state);
        EXPECT_TRUE(page.page_tokens == unit || (page.page_tokens - unit) * token < state);
      }
    }
  }
}

// Field report 77: a request holds 69 states and the latents of 24 layers, not 93 of either.
TEST(PoolLayout, BytesOfOneK3Request) {
  const CacheLayout layout = k3_layout(DType::kBF16);
  EXPECT_EQ(layout.num_kda_layers(), 69);
  EXPECT_EQ(layout.num_mla_layers(), 24);
  EXPECT_EQ(layout.recurrent_bytes(), 3 << 20);
  EXPECT_EQ(layout.conv_bytes(), 221184);
  EXPECT_EQ(layout.state_bytes(), 232316928);
  EXPECT_EQ(layout.recurrent_bytes() * 69, int64_t{207} << 20);
  EXPECT_EQ(layout.latent_bytes_per_token(), 27648);
  EXPECT_EQ(layout.latent_bytes_per_token() << 17, (int64_t{27} << 30) / 8);  // 3.375 GiB
  EXPECT_EQ(layout.latent_bytes_per_token() << 20, int64_t{27} << 30);
  const CacheLayout wide = k3_layout(DType::kF32);
  EXPECT_EQ(wide.recurrent_bytes() * 69, int64_t{414} << 20);
  // The table's FP32 row keeps the conv history in BF16; here it has the states' type.
  EXPECT_EQ(wide.state_bytes() - 69 * 221184, 449372160);
  const CacheLayout rank = k3_layout(DType::kBF16, 8);
  EXPECT_EQ(rank.state_bytes(), 232316928 / 8);
}

TEST(PoolLayout, BlocksOfK3) {
  const auto made = make_pool_layout(k3_layout(DType::kBF16), 128, std::nullopt);
  ASSERT_TRUE(made.is_ok());
  const PoolLayout& layout = made.value();
  EXPECT_EQ(layout.num_kda_groups, 3);
  EXPECT_EQ(layout.slots_per_block, 24);
  for (int64_t g = 0; g < 3; ++g) EXPECT_EQ(layout.kda_layers_in_group(g), 23);
  // The first, second and third KDA layer of each unit of four layers.
  EXPECT_EQ(layout.layers[0].group, 0);
  EXPECT_EQ(layout.layers[1].group, 1);
  EXPECT_EQ(layout.layers[2].group, 2);
  EXPECT_EQ(layout.layers[4].group, 0);
  EXPECT_EQ(layout.layers[4].slot, 1);
  EXPECT_EQ(layout.layers[92].slot, 23);
  EXPECT_EQ(layout.cache.page_tokens, 2944);  // 3 366 912 / 1152 = 2922.7
  EXPECT_EQ(layout.slot_stride % 4096, 0);
  EXPECT_EQ(layout.conv_offset % 64, 0);
  EXPECT_EQ(layout.blocks_needed(2944, 0), 3 + 1);
  EXPECT_EQ(layout.blocks_needed(2945, 0), 3 + 2);
  EXPECT_EQ(layout.blocks_needed(6000, 2944), 3 + 2);  // the hit's page is shared
  EXPECT_EQ(layout.blocks_needed(6000, 3072), 3 + 2);  // its second page is copied
}

TEST(PoolLayout, EveryLayerHasASlotOfItsOwn) {
  for (const char* kinds : {"k", "m", "kkkkkkk", "kkkm", "mkkkkkkkm", "mmmmk", "kkmkk"}) {
    for (int64_t groups = 0; groups <= 4; ++groups) {
      const CacheLayout cache = test::fake_layout(kinds);
      const auto made =
          make_pool_layout(cache, 16, groups == 0 ? std::optional<int64_t>() : std::optional<int64_t>(groups));
      if (cache.num_kda_layers() < groups) {
        EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
        continue;
      }
      ASSERT_TRUE(made.is_ok()) << made.status().message();
      const PoolLayout& layout = made.value();
      std::vector<std::tuple<LayerKind, int32_t, int32_t>> places;
      int64_t in_groups = 0;
      for (size_t l = 0; l < layout.layers.size(); ++l) {
        places.emplace_back(cache.kinds[l], layout.layers[l].group, layout.layers[l].slot);
        EXPECT_LT(layout.layers[l].slot, layout.slots_per_block);
      }
      for (int64_t g = 0; g < layout.num_kda_groups; ++g) in_groups += layout.kda_layers_in_group(g);
      EXPECT_EQ(in_groups, cache.num_kda_layers());
      std::sort(places.begin(), places.end());
      EXPECT_EQ(std::adjacent_find(places.begin(), places.end()), places.end());
      EXPECT_LE(layout.state_bytes, layout.slot_bytes);
    }
  }
}

TEST(PoolLayout, RefusesUnitsOffTheChunkGrid) {
  for (const int64_t unit : {0, -16, 8, 100}) {
    const auto made = make_pool_layout(test::fake_layout("km"), unit, std::nullopt);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument) << unit;
  }
}

}  // namespace
}  // namespace tandem
