#include "train/modules/device_check.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <exception>
#include <functional>
#include <random>

#include "base/cat.h"
#include "train/modules/functional.h"
#include "train/modules/kda.h"
#include "train/modules/mla.h"
#include "train/modules/moe.h"
#include "train/modules/train_model.h"

namespace tandem::train {
namespace {

using Tensors = std::vector<at::Tensor>;

// One empty, one shorter than a convolution, one of three chunks with a partial one.
const std::vector<int64_t> kBounds = {0, 3, 3, 140, 205, 206, 270};
constexpr int64_t kRows = 270;

struct Input {
  std::string name;
  at::Tensor value;        // double, CPU
  bool activation = true;  // has the type under test; else float
};

// What an operator is called with beside its inputs: the same on both sides but for the device.
struct Setting {
  SequenceLayout layout;
  at::Device device = at::kCPU;
};

struct Case {
  std::string name;
  std::vector<Input> inputs;
  std::function<Tensors(const Tensors&, const Setting&)> run;
  double terms = 1;       // summed for one element
  double slack = 1;       // of the bound
  double tf32_slack = 0;  // above 0: products in TF32 with bfloat16 inputs, so many roundings of 2⁻¹¹
  int64_t chunk_size = 64;
};

at::Tensor normal(at::IntArrayRef shape, uint64_t seed, double spread = 1.0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> distribution;
  at::Tensor values = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<double>()[i] = spread * distribution(generator);
  return values;
}

Setting setting(at::Device device, int64_t chunk_size, const std::vector<int64_t>& bounds = kBounds) {
  return {make_sequence_layout(bounds, chunk_size, device).value(), device};
}

// Outputs, then the gradients of all inputs from fixed random gradients of the outputs, as double on the CPU.
Tensors evaluate(const Case& c, const Tensors& inputs, const Setting& where) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().set_requires_grad(true));
  Tensors outputs = c.run(leaves, where), seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    seeds.push_back(normal(outputs[i].sizes(), 1000 + i).to(at::kBFloat16).to(outputs[i].options()));
  }
  const Tensors gradients = torch::autograd::grad(outputs, leaves, seeds, false, false, /*allow_unused=*/true);
  Tensors all;
  for (const at::Tensor& x : outputs) all.push_back(x.detach().to(at::kCPU).to(at::kDouble));
  for (size_t i = 0; i < leaves.size(); ++i) {
    all.push_back(gradients[i].defined() ? gradients[i].to(at::kCPU).to(at::kDouble)
                                         : at::zeros(inputs[i].sizes(), at::kDouble));
  }
  return all;
}

// The error of one tensor, and where it is largest.
std::pair<double, std::string> compare(const std::string& name, const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) return {INFINITY, cat(name, ": shapes differ")};
  const double norm = expected.norm().item<double>();
  const at::Tensor distance = (found - expected).abs();
  const double error = distance.norm().item<double>() / (norm > 0 ? norm : 1.0);
  const at::Tensor flat = at::where(distance.isfinite(), distance, at::full_like(distance, INFINITY)).flatten();
  if (flat.numel() == 0) return {0.0, cat(name, ": empty")};
  int64_t rest = flat.argmax().item<int64_t>();
  const double f = found.flatten().select(0, rest).item<double>();
  const double e = expected.flatten().select(0, rest).item<double>();
  std::string index;
  for (int64_t axis = expected.dim(); axis-- > 0;) {
    index = cat(rest % expected.size(axis), index.empty() ? "" : ",", index);
    rest /= expected.size(axis);
  }
  return {error, cat(name, "[", index, "]: found ", f, ", expected ", e)};
}

CheckResult check_case(const Case& c, at::ScalarType type, at::Device device) {
  const bool narrow = type == at::kBFloat16;
  CheckResult result;
  result.name = cat(c.name, narrow ? ", bf16" : ", fp32");
  const double unit = narrow ? 0x1p-9 : 0x1p-24;
  result.bound = c.slack * (2 * unit + (8 + 4 * std::sqrt(c.terms)) * 0x1p-24) + (narrow ? c.tf32_slack * 0x1p-11 : 0);
  try {
    Tensors exact, rounded;
    for (const Input& input : c.inputs) {
      const at::Tensor value = input.value.to(input.activation ? type : at::kFloat);
      rounded.push_back(value.to(device));
      exact.push_back(value.to(at::kDouble));
    }
    const Tensors expected = evaluate(c, exact, setting(at::kCPU, c.chunk_size));
    const Tensors found = evaluate(c, rounded, setting(device, c.chunk_size));
    const size_t num_outputs = expected.size() - c.inputs.size();
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string name = i < num_outputs ? cat("output ", i) : cat("d ", c.inputs[i - num_outputs].name);
      const auto [error, worst] = compare(name, found[i], expected[i]);
      if (!(error <= result.error)) {
        result.error = error;
        result.worst = worst;
      }
      if (std::isnan(error)) break;
    }
  } catch (const std::exception& failure) {
    result.error = INFINITY;
    result.worst = cat("threw: ", failure.what());
  }
  return result;
}

Case attn_res_case(int64_t dim, int64_t sources) {
  Case c;
  c.name = cat("attn_res_mix, ", sources, " sources of ", dim);
  for (int64_t i = 0; i < sources; ++i) {
    c.inputs.push_back(
        {cat("source ", i), normal({kRows, dim}, 10 + static_cast<uint64_t>(i), 0.5 + static_cast<double>(i))});
  }
  c.inputs.push_back({"norm", 1 + normal({dim}, 2, 0.3), false});
  c.inputs.push_back({"proj", normal({1, dim}, 3, 0.2), false});
  c.run = [](const Tensors& in, const Setting&) -> Tensors {
    const Tensors from(in.begin(), in.end() - 2);
    return {attn_res_mix(from, in[in.size() - 2], in.back(), 1e-5)};
  };
  c.terms = static_cast<double>(dim + kRows);
  return c;
}

void norm_cases(std::vector<Case>& cases) {
  for (const int64_t dim : {64, 128, 256, 264, 10, 2048}) {
    Case c;
    c.name = cat("rms_norm, ", dim);
    c.inputs = {{"x", normal({kRows, dim}, 1)}, {"weight", 1 + normal({dim}, 2, 0.3), false}};
    c.run = [](const Tensors& in, const Setting&) -> Tensors { return {rms_norm(in[0], in[1], 1e-5)}; };
    c.terms = static_cast<double>(dim + kRows);
    cases.push_back(c);
    c.name = cat("rms_norm_gated, ", dim);
    c.inputs = {
        {"x", normal({150, 4, dim}, 1)}, {"gate", normal({150, 4, dim}, 2, 2.0)}, {"weight", normal({dim}, 3), false}};
    c.run = [](const Tensors& in, const Setting&) -> Tensors { return {rms_norm_gated(in[0], in[1], in[2], 1e-5)}; };
    cases.push_back(c);
  }
}

void stream_cases(std::vector<Case>& cases) {
  struct Shape {
    int64_t channels, width, norm_dim;
  };
  for (const Shape& s : {Shape{256, 4, 0}, {256, 4, 64}, {384, 4, 128}, {40, 3, 8}, {30, 4, 5}, {1024, 2, 0}}) {
    Case c;
    c.name = cat("short_conv, ", s.channels, " channels, width ", s.width, ", norm of ", s.norm_dim);
    c.inputs = {{"x", normal({kRows, s.channels}, 1)}, {"taps", normal({s.channels, 1, s.width}, 2), false}};
    c.run = [n = s.norm_dim](const Tensors& in, const Setting& where) -> Tensors {
      return {short_conv(in[0], in[1], where.layout, n)};
    };
    c.terms = kRows;
    c.slack = 2;
    cases.push_back(c);
  }
  for (const bool bounded : {true, false}) {
    for (const int64_t dim : {64, 5}) {
      Case c;
      c.name = cat("kda_gate, ", bounded ? "bounded" : "softplus", ", 4 heads of ", dim);
      c.inputs = {{"z", normal({kRows, 4, dim}, 1, 3.0)},
                  {"a_log", normal({4}, 2, 0.5), false},
                  {"dt_bias", normal({4 * dim}, 3), false}};
      c.run = [bounded](const Tensors& in, const Setting&) -> Tensors {
        return {kda_gate(in[0], in[1], in[2], bounded ? std::optional(-5.0) : std::nullopt)};
      };
      c.terms = static_cast<double>(kRows * dim);
      cases.push_back(c);
    }
  }
}

void small_cases(std::vector<Case>& cases) {
  for (const bool situ : {true, false}) {
    Case c;
    c.name = situ ? "gated_act, SiTU" : "gated_act, SwiGLU";
    c.inputs = {{"gate", normal({kRows, 40}, 1, 4.0)}, {"up", normal({kRows, 40}, 2, 20.0)}};
    c.run = [situ](const Tensors& in, const Setting&) -> Tensors {
      ModelConfig config;
      config.hidden_act = situ ? HiddenAct::kSitu : HiddenAct::kSilu;
      config.situ_beta = 4.0;
      if (situ) config.situ_linear_beta = 25.0;
      return {gated_act(config, in[0], in[1])};
    };
    c.slack = 2;
    cases.push_back(c);
  }
  for (const int64_t vocab : {3072, 19}) {
    Case c;
    c.name = cat("cross_entropy, vocabulary of ", vocab);
    c.inputs = {{"logits", normal({kRows, vocab}, 1, 3.0)}};
    c.run = [vocab](const Tensors& in, const Setting& where) -> Tensors {
      const at::Tensor rows = at::arange(kRows, at::kLong);
      const at::Tensor target = (rows * 7).remainder(vocab), mask = rows.remainder(3).ne(0).to(at::kDouble);
      return {cross_entropy(in[0], target.to(where.device), mask.to(where.device)).reshape({1})};
    };
    c.terms = static_cast<double>(vocab);
    cases.push_back(c);
  }
  Case gather;
  gather.name = "permute_padded";
  gather.inputs = {{"x", normal({kRows, 2, 40}, 1)}};
  gather.run = [](const Tensors& in, const Setting& where) -> Tensors {
    return {permute_padded(in[0], where.layout.chunk_rows, where.layout.row_in_chunks)};
  };
  cases.push_back(gather);
}

Case kda_case(int64_t dim, bool bounded, int64_t chunk_size, double spread) {
  Case c;
  c.name = cat("kda_chunked, 2 heads of ", dim, bounded ? ", bounded" : ", softplus", ", chunks of ", chunk_size,
               ", gates spread by ", spread);
  const at::Tensor z = normal({kRows, 2, dim}, 4, spread);
  const at::Tensor g = bounded ? -5.0 * z.sigmoid() : -z.exp();
  c.inputs = {{"q", l2_norm(normal({kRows, 2, dim}, 1), 1e-6)},
              {"k", l2_norm(normal({kRows, 2, dim}, 2), 1e-6)},
              {"v", normal({kRows, 2, dim}, 3)},
              {"g", g, false},
              {"beta", normal({kRows, 2}, 5).sigmoid(), false},
              {"state", normal({static_cast<int64_t>(kBounds.size()) - 1, 2, dim, dim}, 6, 0.3), false}};
  c.run = [bounded, dim](const Tensors& in, const Setting& where) -> Tensors {
    KdaInputs inputs;
    inputs.q = in[0];
    inputs.k = in[1];
    inputs.v = in[2];
    inputs.g = in[3];
    inputs.beta = in[4];
    inputs.initial_state = in[5];
    inputs.scale = 1.0 / std::sqrt(static_cast<double>(dim));
    inputs.bounded = bounded;
    const KdaOutputs outputs = kda_chunked(inputs, where.layout);
    return {outputs.out, outputs.state};
  };
  c.terms = static_cast<double>(64 * dim);
  c.slack = 4;
  c.tf32_slack = 8;
  c.chunk_size = chunk_size;
  return c;
}

Case attention_case(int64_t key_dim, int64_t value_dim) {
  Case c;
  c.name = cat("causal_attention, keys of ", key_dim, ", values of ", value_dim);
  c.inputs = {{"q", normal({kRows, 3, key_dim}, 1)},
              {"k", normal({kRows, 3, key_dim}, 2)},
              {"v", normal({kRows, 3, value_dim}, 3)}};
  c.run = [key_dim](const Tensors& in, const Setting& where) -> Tensors {
    return {causal_attention(in[0], in[1], in[2], 1.0 / std::sqrt(static_cast<double>(key_dim)), where.layout)};
  };
  c.terms = kRows;
  c.slack = 4;
  return c;
}

Case experts_case(int64_t width, int64_t inner) {
  Case c;
  c.name = cat("routed_experts, 8 of ", width, " by ", inner);
  const double scale = 1.0 / std::sqrt(static_cast<double>(width));
  c.inputs = {{"z", normal({kRows, width}, 1)},
              {"logits", normal({kRows, 8}, 2), false},
              {"w1", normal({8, inner, width}, 3, scale), false},
              {"w3", normal({8, inner, width}, 4, scale), false},
              {"w2", normal({8, width, inner}, 5, scale), false}};
  c.run = [](const Tensors& in, const Setting&) -> Tensors {
    ModelConfig config;
    config.num_experts = 8;
    config.num_experts_per_token = 3;
    config.hidden_act = HiddenAct::kSilu;
    const at::Tensor skew = at::arange(8, in[1].options()) * 0.5;  // loads of every size
    const Routing routing = route(config, in[1] + skew, at::zeros({8}, in[1].options().requires_grad(false)));
    return {routed_experts(config, {in[2], in[3], in[4]}, in[0], routing)};
  };
  c.terms = kRows;
  c.slack = 4;
  return c;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto& [dim, sources] :
       std::vector<std::pair<int64_t, int64_t>>{{256, 1}, {256, 5}, {264, 9}, {10, 3}, {2048, 2}, {64, 20}}) {
    cases.push_back(attn_res_case(dim, sources));
  }
  norm_cases(cases);
  stream_cases(cases);
  small_cases(cases);
  for (const bool bounded : {true, false}) {
    cases.push_back(kda_case(64, bounded, 64, 1.0));
    cases.push_back(kda_case(64, bounded, 64, 3.0));
    cases.push_back(kda_case(128, bounded, 64, 2.0));
    cases.push_back(kda_case(20, bounded, 32, 1.0));
  }
  cases.push_back(attention_case(96, 64));
  cases.push_back(attention_case(12, 7));
  cases.push_back(experts_case(64, 32));
  cases.push_back(experts_case(10, 7));
  return cases;
}

}  // namespace

void check_operators(at::Device device, FunctionRef<void(const CheckResult&)> report) {
  for (const Case& c : all_cases()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) report(check_case(c, type, device));
  }
}

}  // namespace tandem::train
