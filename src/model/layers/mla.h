// model/layers/mla.h: one Gated MLA layer over the rows of a step: query and latent projections, cache append,
// attention over the latents (expanded for prefill, absorbed for decode), output gate.
//   Source: DeepSeek-V2 report (MLA); model.md §3.5. No positional encoding; the shared key part is never rotated.
#pragma once

#include "model/forward.h"

namespace tandem {

// x [T, D] is the normalised input, y the layer's output, no overlap: y [T, D], or the plan's wanted rows alone, bit
// for bit the same.
Status mla_layer(const StepContext& step, int64_t layer, const MlaLayerWeights& weights,
                 const MatrixView<const float>& x, const MatrixView<float>& y);

}  // namespace tandem
