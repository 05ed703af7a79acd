// model/layers/kda.h: one KDA layer over the rows of a step: projections, short convolution, gates, recurrence, output
// norm and gate. Advances every sequence's KdaState of this layer and fills the plan's captures.
//   Source: Kimi Linear report; model.md §3.4.
#pragma once

#include "model/forward.h"

namespace tandem {

// x [T, D] is the normalised input, y the layer's output, no overlap: y [T, D], or the plan's wanted rows alone, bit
// for bit the same.
Status kda_layer(const StepContext& step, int64_t layer, const KdaLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y);

}  // namespace tandem
