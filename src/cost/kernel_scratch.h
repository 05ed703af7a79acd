// cost/kernel_scratch.h: what the matrix kernels take from the arena, by their shapes: mirrors of the allocations in
// linear_simd.inl, experts_simd.inl and kernels/amx/, which tests/cost holds them to. Threading: pure functions.
#pragma once

#include <cstdint>

#include "cost/arena_model.h"
#include "kernels/kernel_table.h"

namespace tandem {

// Of a backend's vector kernels.
struct KernelWidths {
  int64_t lanes = 16;           // f32 in a register
  int64_t streamed_tokens = 6;  // at most, whose weights are used as they are read (simd/weight_tile.inl)
  int64_t threads = 1;
  bool has_tiles = false;  // AMX
};
KernelWidths kernel_widths(KernelBackend kernels, int threads);

struct ExpertShape {
  int64_t experts = 0;
  int64_t input = 0;   // Dl
  int64_t hidden = 0;  // I
  int64_t chosen = 0;  // by a token
  int64_t tokens = 0;
  bool is_mxfp8 = false;
};

void take_simd_linear(ArenaModel& arena, const KernelWidths& kernels, int64_t columns, int64_t tokens);
void take_simd_experts(ArenaModel& arena, const KernelWidths& kernels, const ExpertShape& shape);

// AMX: the rows of prompts and of decodes, bf16 matrices and MXFP4 experts; int8 matrices of either.
void take_prompt_tiles(ArenaModel& arena, const KernelWidths& kernels, int64_t columns, int64_t tokens);
void take_decode_tiles(ArenaModel& arena, int64_t columns, int64_t tokens);
void take_int8_tiles(ArenaModel& arena, int64_t columns, int64_t tokens);
void take_prompt_experts(ArenaModel& arena, const KernelWidths& kernels, const ExpertShape& shape);

}  // namespace tandem
