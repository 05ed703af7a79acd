#include "train/optim/muon.h"

#include <ATen/ATen.h>

namespace tandem::train {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kNormEps = 1e-7;

at::Tensor heads_of(const at::Tensor& parameter, int64_t heads) {
  return parameter.view({heads, parameter.size(0) / heads, parameter.size(1)});
}

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrices, int steps) {
  at::Tensor x = matrices.scalar_type() == at::kDouble ? matrices : matrices.to(at::kFloat);
  x = x / (x.square().sum({1, 2}, true).sqrt() + kNormEps);
  const bool tall = x.size(1) > x.size(2);
  if (tall) x = x.transpose(1, 2);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    x = kA * x + at::bmm(kB * gram + kC * at::bmm(gram, gram), x);
  }
  return tall ? x.transpose(1, 2) : x;
}

bool is_muon_role(TensorRole role) {
  switch (role) {
    case TensorRole::kKdaQProj:
    case TensorRole::kKdaKProj:
    case TensorRole::kKdaVProj:
    case TensorRole::kKdaFAProj:
    case TensorRole::kKdaFBProj:
    case TensorRole::kKdaBProj:
    case TensorRole::kKdaGProj:
    case TensorRole::kKdaGAProj:
    case TensorRole::kKdaGBProj:
    case TensorRole::kKdaOProj:
    case TensorRole::kMlaQProj:
    case TensorRole::kMlaQAProj:
    case TensorRole::kMlaQBProj:
    case TensorRole::kMlaKvAProj:
    case TensorRole::kMlaKvBProj:
    case TensorRole::kMlaGProj:
    case TensorRole::kMlaOProj:
    case TensorRole::kMlpGateProj:
    case TensorRole::kMlpUpProj:
    case TensorRole::kMlpDownProj:
    case TensorRole::kRouter:
    case TensorRole::kLatentDown:
    case TensorRole::kLatentUp:
    case TensorRole::kSharedGateProj:
    case TensorRole::kSharedUpProj:
    case TensorRole::kSharedDownProj:
    case TensorRole::kExpertW1:
    case TensorRole::kExpertW2:
    case TensorRole::kExpertW3:
    case TensorRole::kMtpProj: return true;
    default: return false;
  }
}

std::vector<at::Tensor> muon_blocks(const ModelConfig& config, TensorRole role, const at::Tensor& parameter) {
  switch (role) {
    case TensorRole::kKdaQProj:
    case TensorRole::kKdaKProj:
    case TensorRole::kKdaVProj: return {heads_of(parameter, config.kda_num_heads)};
    case TensorRole::kMlaQProj:
    case TensorRole::kMlaQBProj: return {heads_of(parameter, config.num_attention_heads)};
    case TensorRole::kMlaKvBProj: {
      const at::Tensor heads = heads_of(parameter, config.num_attention_heads);
      return {heads.narrow(1, 0, config.qk_nope_head_dim), heads.narrow(1, config.qk_nope_head_dim, config.v_head_dim)};
    }
    case TensorRole::kExpertW1:
    case TensorRole::kExpertW2:
    case TensorRole::kExpertW3: return {parameter};
    default: return {parameter.unsqueeze(0)};
  }
}

}  // namespace tandem::train
