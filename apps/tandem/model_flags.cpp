#include "model_flags.h"

#include <fmt/core.h>

namespace tandem::app {

void add_model_flags(CLI::App* command, ModelFlags& flags, CommonFlags& common) {
  command->add_option("MODEL", flags.model_dir, "checkpoint folder in the released format")->required();
  command->add_option("--activation-dtype", flags.activation_dtype, "f32 | bf16: activations between operators")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--cache-dtype", flags.cache_dtype, "f32 | bf16: KDA states, conv history and MLA latents")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--expert-act", flags.expert_act, "f32 | mxfp8: inputs of the routed experts")
      ->check(CLI::IsMember({"f32", "mxfp8"}))
      ->capture_default_str();
  command->add_option("--context", flags.context, "tokens of a sequence at most (default: what config.json states)");
  add_common_flags(command, common);
}

Result<std::unique_ptr<LoadedModel>> load_model(const ModelFlags& flags, const CommonFlags& common) {
  LoadOptions options;
  options.model.activation_dtype = flags.activation_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.model.expert_act = flags.expert_act == "mxfp8" ? ExpertAct::kMxfp8 : ExpertAct::kF32;
  options.cache_dtype = flags.cache_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.num_threads = resolve_num_threads(common);
  options.context = flags.context;
  const Result<std::optional<KernelBackend>> kernels = parse_kernel_backend(common.kernels);
  if (!kernels.is_ok()) return kernels.status();
  options.kernels = kernels.value();
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::load(flags.model_dir, options);
  if (model.is_ok()) {
    fmt::print(stderr, "{}; {} threads\n", model.value()->exec().kernels.describe(), options.num_threads);
  }
  return model;
}

}  // namespace tandem::app
