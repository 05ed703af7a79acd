// model/observer.h: taps on a forward pass, for scoring, tests and draft models. The default does nothing.
//
//   Rows are the step plan's rows in order. Views are valid during the call only.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace tandem {

enum class Tap {
  kAttnIn,       // input of the layer's first norm (after attention-residual mixing)
  kAttnOut,      // attention output
  kMlpIn,        // input of the second norm
  kMlpOut,       // MLP or MoE output
  kLayerOut,     // running sum after the layer (Block AttnRes: inside the current block; Full: the last source)
  kFinalIn,      // before the final norm (AttnRes: after the output mix); layer = L
  kFinalHidden,  // after it; layer = L
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void on_tensor(Tap tap, int64_t layer, const MatrixView<const float>& rows) {
    (void)tap, (void)layer, (void)rows;
  }
  virtual void on_router(int64_t layer, const MatrixView<const int32_t>& topk_ids,
                         const MatrixView<const float>& topk_weights) {
    (void)layer, (void)topk_ids, (void)topk_weights;
  }
};

}  // namespace tandem
