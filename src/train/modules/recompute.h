// train/modules/recompute.h: a sublayer that keeps its input alone for the backward pass, which runs it once more.
//
//   The activations of one sublayer at a time are alive then, whatever the depth: memory against about a third more
//   arithmetic. Values are those of the plain call, bit for bit on one device; gradients differ by the order in which
//   the uses of one tensor are added up.
//   Threading: as the function's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "train/modules/layer_parameters.h"

namespace tandem::train {

// Reads nothing that needs a gradient but its arguments, and gives the same result when called again. What it captures
// lives until the backward pass is over.
using Sublayer = std::function<at::Tensor(const at::Tensor& x, const LayerParameters& weights)>;

at::Tensor recompute(Sublayer sublayer, const at::Tensor& x, const LayerParameters& weights);

}  // namespace tandem::train
