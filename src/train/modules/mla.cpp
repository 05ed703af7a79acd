#include "train/modules/mla.h"

#include <ATen/ATen.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "train/modules/functional.h"

namespace tandem::train {
namespace {

constexpr int64_t kQueryBlock = 512;

// LibTorch's fused attention, where it has one that takes a scale.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 1)
constexpr bool kHasFusedAttention = true;
at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 4
  // cuDNN's kernel is compiled anew for each length, and packed documents have many: 0.7 s of a step that takes 0.2 s.
  static const bool without_cudnn = (at::globalContext().setSDPUseCuDNN(false), true);
  static_cast<void>(without_cudnn);
#endif
  // The fused kernels want one head size: values are padded with zeros, and their part is cut out again.
  const int64_t missing = q.size(3) - v.size(3);
  const at::Tensor padded = missing > 0 ? at::constant_pad_nd(v, {0, missing}) : v;
  return at::scaled_dot_product_attention(q, k, padded, {}, 0.0, /*is_causal=*/true, scale).narrow(3, 0, v.size(3));
}
#else
constexpr bool kHasFusedAttention = false;
at::Tensor fused_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, double) { return {}; }
#endif

// q, k, v [documents, H, length, ·].
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  if (kHasFusedAttention && q.is_cuda() && q.scalar_type() != at::kDouble) return fused_attention(q, k, v, scale);
  const int64_t length = q.size(2);
  std::vector<at::Tensor> out;
  for (int64_t begin = 0; begin < length; begin += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, length - begin);
    const int64_t visible = begin + rows;
    const at::Tensor future =
        at::ones({rows, visible}, q.options().dtype(at::kBool).requires_grad(false)).triu(begin + 1);
    const at::Tensor scores = at::matmul(q.narrow(2, begin, rows) * scale, k.narrow(2, 0, visible).transpose(2, 3));
    const at::Tensor share = widen(scores).masked_fill(future, -std::numeric_limits<double>::infinity()).softmax(-1);
    out.push_back(at::matmul(share.to(v.scalar_type()), v.narrow(2, 0, visible)));
  }
  return at::cat(out, 2);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            const SequenceLayout& layout) {
  if (layout.num_tokens == 0) return at::zeros_like(v);
  const auto in_buckets = [&](const at::Tensor& x) {
    return layout.buckets_in_order ? x : permute_padded(x, layout.bucket_rows, layout.row_in_buckets);
  };
  const at::Tensor queries = in_buckets(q), keys = in_buckets(k), values = in_buckets(v);
  std::vector<at::Tensor> out;
  int64_t begin = 0;
  for (const DocumentBucket& bucket : layout.buckets) {
    const int64_t rows = bucket.num_documents * bucket.length;
    const auto side_by_side = [&](const at::Tensor& x) {
      return x.narrow(0, begin, rows)
          .reshape({bucket.num_documents, bucket.length, x.size(1), x.size(2)})
          .transpose(1, 2);
    };
    const at::Tensor attended = attend(side_by_side(queries), side_by_side(keys), side_by_side(values), scale);
    out.push_back(attended.transpose(1, 2).reshape({-1, v.size(1), v.size(2)}));
    begin += rows;
  }
  const at::Tensor all = out.size() == 1 ? out[0] : at::cat(out);
  return layout.buckets_in_order ? all : permute_padded(all, layout.row_in_buckets, layout.bucket_rows);
}

at::Tensor mla_layer(const ModelConfig& config, const LayerParameters& weights, const at::Tensor& x,
                     const SequenceLayout& layout) {
  using Role = TensorRole;
  const int64_t rows = x.size(0), heads = config.num_attention_heads;
  const at::Tensor query = config.q_lora_rank
                               ? project(rms_norm(project(x, weights[Role::kMlaQAProj]), weights[Role::kMlaQALayernorm],
                                                  config.mla_lora_norm_eps),
                                         weights[Role::kMlaQBProj])
                               : project(x, weights[Role::kMlaQProj]);
  const at::Tensor latent = project(x, weights[Role::kMlaKvAProj]);
  const at::Tensor compressed =
      rms_norm(latent.narrow(1, 0, config.kv_lora_rank), weights[Role::kMlaKvALayernorm], config.mla_lora_norm_eps);
  const at::Tensor shared_key = latent.narrow(1, config.kv_lora_rank, config.qk_rope_head_dim).unsqueeze(1);
  const at::Tensor key_and_value = project(compressed, weights[Role::kMlaKvBProj])
                                       .reshape({rows, heads, config.qk_nope_head_dim + config.v_head_dim});
  const at::Tensor key = at::cat(
      {key_and_value.narrow(2, 0, config.qk_nope_head_dim), shared_key.expand({rows, heads, config.qk_rope_head_dim})},
      2);
  const at::Tensor value = key_and_value.narrow(2, config.qk_nope_head_dim, config.v_head_dim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(config.qk_head_dim()));
  at::Tensor out = causal_attention(query.reshape({rows, heads, config.qk_head_dim()}), key, value, scale, layout)
                       .reshape({rows, heads * config.v_head_dim});
  if (config.mla_use_output_gate) out = out * project(x, weights[Role::kMlaGProj]).sigmoid();
  return project(out, weights[Role::kMlaOProj]);
}

}  // namespace tandem::train
