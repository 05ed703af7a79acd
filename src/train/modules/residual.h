// train/modules/residual.h: the residual stream of one forward pass: plain sum, Block or Full attention residuals
// (model.md §3.3), the same bookkeeping as model/layers/attn_res.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "config/model_config.h"

namespace tandem::train {

class ResidualStream {
 public:
  ResidualStream(const ModelConfig& config, at::Tensor embedded);

  // Input of a layer's attention. The first layer of a block stores the running sum as it stands and starts a new one.
  at::Tensor attention_input(int64_t layer, const at::Tensor& norm, const at::Tensor& proj);
  // Input of a feed-forward layer, or of the final norm.
  at::Tensor mix(const at::Tensor& norm, const at::Tensor& proj) const;
  void add(const at::Tensor& output);

 private:
  const ModelConfig& config_;
  std::vector<at::Tensor> stored_;  // kFull: every source
  at::Tensor running_;              // undefined at the start of a block
};

}  // namespace tandem::train
