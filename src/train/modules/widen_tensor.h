// train/modules/widen_tensor.h: a checkpoint tensor of any stored type as floats, exactly. No torch in here.
#pragma once

#include <vector>

#include "weights/checkpoint.h"
#include "weights/checkpoint_check.h"

namespace tandem::train {

// All elements, row-major; of MXFP4 the decoded matrix. `stored` has passed check_checkpoint().
void widen_tensor(const Checkpoint& checkpoint, const ExpectedTensor& tensor, const StoredTensor& stored,
                  std::vector<float>& out);

}  // namespace tandem::train
