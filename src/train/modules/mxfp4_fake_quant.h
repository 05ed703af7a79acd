// train/modules/mxfp4_fake_quant.h: weights as the exported MXFP4 checkpoint will hold them, with a straight-through
// gradient.
//
//   Forward: each group of 32 along the last axis becomes what mxfp4_quantize_group() and its decoder give, bit for
//   bit, on any device. Backward: the gradient as it comes. Source: systems.md §9.7; OCP Microscaling Formats v1.0.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::train {

// Q(w); w float, finite, its last extent a multiple of 32.
at::Tensor mxfp4_round(const at::Tensor& weight);

// Q(w) forward, identity backward. A last extent that is no multiple of 32 cannot be packed: w itself. Types other
// than float are rounded through float.
at::Tensor mxfp4_fake_quant(const at::Tensor& weight);

}  // namespace tandem::train
