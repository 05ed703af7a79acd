// train/cuda/row_walk.cuh: operators that a thread does for four channels, walking down a tile of rows. Sums over rows
// stay in its registers and end as one partial row a tile.
#pragma once

#include <cstdint>

namespace tandem::train::cuda {

inline constexpr int kTileRows = 64;
inline constexpr int kChannels = 4;       // of a thread
inline constexpr int kWalkThreads = 128;  // at most, of a block; a multiple of the lanes that share a norm

struct WalkShape {
  dim3 grid;
  int threads;
};

inline WalkShape walk_shape(int64_t rows, int channels) {
  const int wanted = (channels / kChannels + 31) / 32 * 32;  // whole warps
  const int threads = wanted < kWalkThreads ? wanted : kWalkThreads;
  const int span = threads * kChannels;
  return {dim3(static_cast<unsigned>((rows + kTileRows - 1) / kTileRows),
               static_cast<unsigned>((channels + span - 1) / span)),
          threads};
}

__device__ inline int walk_channel() { return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kChannels; }

}  // namespace tandem::train::cuda
