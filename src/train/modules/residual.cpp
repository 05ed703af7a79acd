#include "train/modules/residual.h"

#include <ATen/ATen.h>

#include "train/modules/functional.h"

namespace tandem::train {

ResidualStream::ResidualStream(const ModelConfig& config, at::Tensor embedded) : config_(config) {
  if (config.attn_res_mode == AttnResMode::kFull) {
    stored_.push_back(std::move(embedded));
  } else {
    running_ = std::move(embedded);
  }
}

at::Tensor ResidualStream::attention_input(int64_t layer, const at::Tensor& norm, const at::Tensor& proj) {
  at::Tensor input = mix(norm, proj);
  if (config_.attn_res_mode == AttnResMode::kBlock && layer % config_.attn_res_block_size == 0) {
    stored_.push_back(running_);
    running_ = at::Tensor();
  }
  return input;
}

at::Tensor ResidualStream::mix(const at::Tensor& norm, const at::Tensor& proj) const {
  if (stored_.empty()) return running_;
  std::vector<at::Tensor> sources = stored_;
  if (running_.defined()) sources.push_back(running_);
  return attn_res_mix(sources, norm, proj, config_.rms_norm_eps);
}

void ResidualStream::add(const at::Tensor& output) {
  if (config_.attn_res_mode == AttnResMode::kFull) {
    stored_.push_back(output);
  } else {
    running_ = running_.defined() ? running_ + output : output;
  }
}

}  // namespace tandem::train
