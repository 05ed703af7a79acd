#include "cost/kernel_scratch.h"

#include <algorithm>

#include "kernels/simd/weight_product.h"

namespace tandem {
namespace {

constexpr int64_t kBudgetBytes = int64_t{64} << 20;  // of what is in work together, of the experts' kernels

int64_t tiles(int64_t count, int64_t size) { return (count + size - 1) / size; }

int64_t product_floats(const KernelWidths& kernels, int64_t columns, int64_t tokens) {
  if (tokens <= kernels.streamed_tokens) return 0;
  const int64_t parked = columns > kColBlock ? kRowBlock * kTokenBlock * kernels.lanes : 0;
  return kRowBlock * kColBlock + parked;
}

// amx/tiles.inl: three planes of bf16 in tiles of 32 columns × 16 tokens, and panels of 32 rows of weights.
constexpr int64_t kTileTokens = 16, kTileColumns = 32, kTileBytes = 1024, kPackedBytes = 3 * kTileBytes;
int64_t panel_bytes(int64_t columns) { return tiles(columns, kTileColumns) * 2 * kTileBytes; }

}  // namespace

KernelWidths kernel_widths(KernelBackend kernels, int threads) {
  switch (kernels) {
    case KernelBackend::kAmx:
    case KernelBackend::kAvx512:
      return {.lanes = 16, .streamed_tokens = 6, .threads = threads, .has_tiles = kernels == KernelBackend::kAmx};
    case KernelBackend::kAvx2: return {.lanes = 8, .streamed_tokens = 3, .threads = threads, .has_tiles = false};
    case KernelBackend::kRef:
    case KernelBackend::kPortable:
    case KernelBackend::kNeon: break;
  }
  return {.lanes = 4, .streamed_tokens = 2, .threads = threads, .has_tiles = false};
}

void take_simd_linear(ArenaModel& arena, const KernelWidths& kernels, int64_t columns, int64_t tokens) {
  arena.floats(product_floats(kernels, columns, tokens) * kernels.threads);
}

// Hidden activations of a block of tokens that bounds them.
void take_simd_experts(ArenaModel& arena, const KernelWidths& kernels, const ExpertShape& shape) {
  const int64_t a_token = shape.chosen * shape.hidden * 4;
  const int64_t block = std::min(std::max<int64_t>(kBudgetBytes / a_token, 1), shape.tokens);
  const int64_t widest = std::max(shape.input, shape.hidden);
  arena.floats(shape.experts);
  arena.floats(shape.experts + 1);
  arena.floats(block * shape.chosen);
  arena.floats(block * shape.chosen * shape.hidden);
  arena.floats((product_floats(kernels, widest, block * shape.chosen) + 2 * kTokenBlock * kRowBlock) * kernels.threads);
  arena.floats(shape.experts);
  if (shape.is_mxfp8) arena.floats(block * shape.input);
  arena.floats(block * shape.input);
}

void take_prompt_tiles(ArenaModel& arena, const KernelWidths& kernels, int64_t columns, int64_t tokens) {
  arena.alloc(tiles(tokens, kTileTokens) * tiles(columns, kTileColumns) * kPackedBytes);
  arena.alloc(panel_bytes(columns) * kernels.threads);
}

// amx/stream_tiles.inl: few tokens lie side by side, without the unused rest of a tile.
void take_decode_tiles(ArenaModel& arena, int64_t columns, int64_t tokens) {
  constexpr int64_t kMergedTokens = 5;
  const int64_t a_tile = tokens > kMergedTokens ? kPackedBytes : kPackedBytes / kTileTokens * tokens;
  arena.alloc(tiles(tokens, kTileTokens) * tiles(columns, kTileColumns) * a_tile);
}

// amx/int8_linear_amx.cpp: digits of 64 columns.
void take_int8_tiles(ArenaModel& arena, int64_t columns, int64_t tokens) {
  constexpr int64_t kColumns = 64, kNarrowTokens = 4, kNarrowBytes = 256;
  const int64_t token_tiles = tiles(tokens, kTileTokens);
  arena.floats(token_tiles * kTileTokens);
  arena.floats(token_tiles * kTileTokens);
  arena.alloc(token_tiles * tiles(columns, kColumns) *
              (tokens <= kNarrowTokens ? tokens * kNarrowBytes : kPackedBytes));
}

// amx/experts_prefill_amx.cpp: packed inputs and hidden activations of token tiles that bound them.
void take_prompt_experts(ArenaModel& arena, const KernelWidths& kernels, const ExpertShape& shape) {
  const int64_t pairs = shape.tokens * shape.chosen;
  const int64_t in = tiles(shape.input, kTileColumns) * kPackedBytes;
  const int64_t hidden = tiles(shape.hidden, kTileColumns) * kPackedBytes;
  const int64_t all = tiles(pairs, kTileTokens) + std::min(shape.experts, pairs);
  const int64_t most = std::max<int64_t>(std::min(kBudgetBytes / (in + hidden) / 2 * 2, all), 2);
  arena.floats(shape.experts);
  arena.floats(shape.experts + 1);
  arena.floats(pairs);
  arena.floats(shape.experts + 1);
  arena.alloc(most * in);
  arena.alloc(most * hidden);
  arena.alloc(std::max(2 * panel_bytes(shape.input), panel_bytes(shape.hidden)) * kernels.threads);
  arena.floats(shape.experts);
}

}  // namespace tandem
