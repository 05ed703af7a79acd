// model/layer_source.h: where the trunk's matrices come from when not even they fit in memory: a layer at a time.
//
//   enter(l) comes before layer l is computed, enter(L) before the head. From then on, until the next enter(), the
//   matrices of that layer (of L: the head) are in memory behind the views of the model's weights; routers, embedding
//   and small vectors always are. A failure names the layer and ends the step.
//   Threading: engine thread only.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace tandem {

class LayerSource {
 public:
  virtual ~LayerSource() = default;
  virtual Status enter(int64_t layer) = 0;
};

}  // namespace tandem
