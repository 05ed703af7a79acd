// train/modules/mxfp8_fake_quant.h: activations as an engine with MXFP8 expert inputs sees them, with a
// straight-through gradient.
//
//   Forward: each group of 32 along the last axis becomes what mxfp8_round(span) of tensor/mxfp4.h gives, bit for bit,
//   on any device that keeps subnormal floats. Backward: the gradient as it comes.
//   Source: model.md §5.2; OCP Microscaling Formats v1.0. The scale rule (floor) is OCP's; that of the released model
//   is UNVERIFIED.
#pragma once

#include <ATen/core/Tensor.h>

namespace tandem::train {

// Q(x); x float, its last extent a multiple of 32. A NaN stays NaN and does not set its group's scale; a group with an
// infinity stays as it is.
at::Tensor mxfp8_round(const at::Tensor& x);

// Q(x) forward, identity backward; the last extent is a multiple of 32. Types other than float are rounded through
// float.
at::Tensor mxfp8_fake_quant(const at::Tensor& x);

}  // namespace tandem::train
