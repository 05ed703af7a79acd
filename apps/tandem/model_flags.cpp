#include "model_flags.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "size_text.h"

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
  command
      ->add_option("--weights", flags.weights,
                   "auto | mapped | resident: read matrices from the mapped file or copy them into huge pages")
      ->check(CLI::IsMember({"auto", "mapped", "resident"}))
      ->capture_default_str();
  command
      ->add_option("--trunk", flags.trunk,
                   "stored | int8: weights of attention, dense and shared MLPs and lm_head as stored, or quantised at "
                   "load to int8 with a scale for each row (not exact)")
      ->check(CLI::IsMember({"stored", "int8"}))
      ->capture_default_str();
  command->add_option("--context", flags.context, "tokens of a sequence at most (default: what config.json states)")
      ->check(CLI::Range(int64_t{1}, kMaxCount));
  command->add_option("--ram", flags.ram,
                      "memory of the whole process, as 8GB: routed experts that do not fit are streamed from disk "
                      "(default: what is available)");
  add_common_flags(command, common);
}

namespace {

// Logs go to stderr: stdout belongs to the command's result.
void log_to_stderr() {
  static const bool once = [] {
    auto logger = std::make_shared<spdlog::logger>("tandem", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    logger->set_pattern("%n: %^%l%$: %v");
    spdlog::set_default_logger(std::move(logger));
    return true;
  }();
  (void)once;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> load_model(const ModelFlags& flags, const CommonFlags& common,
                                                MemoryOptions memory) {
  log_to_stderr();
  LoadOptions options;
  options.model.activation_dtype = flags.activation_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.model.expert_act = flags.expert_act == "mxfp8" ? ExpertAct::kMxfp8 : ExpertAct::kF32;
  options.cache_dtype = flags.cache_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.weights = flags.weights == "mapped"     ? WeightPlacement::kMapped
                    : flags.weights == "resident" ? WeightPlacement::kResident
                                                  : WeightPlacement::kAuto;
  options.trunk = flags.trunk == "int8" ? TrunkFormat::kInt8 : TrunkFormat::kStored;
  options.context = flags.context;
  if (!flags.ram.empty()) {
    const Result<int64_t> bytes = size_flag("--ram", flags.ram);
    if (!bytes.is_ok()) return bytes.status();
    memory.ram_bytes = bytes.value();
  }
  options.memory = memory;
  const Result<std::optional<KernelBackend>> kernels = parse_kernel_backend(common.kernels);
  if (!kernels.is_ok()) return kernels.status();
  options.kernels = kernels.value();
  const Result<ThreadPlacement> threads = resolve_threads(common);
  if (!threads.is_ok()) return threads.status();
  options.num_threads = threads.value().num_threads;
  options.cpus = threads.value().cpus;
  Result<std::unique_ptr<LoadedModel>> model = LoadedModel::load(flags.model_dir, options);
  if (model.is_ok()) {
    const std::string cpus = options.cpus.empty() ? "" : " on processors " + cpu_list_text(options.cpus);
    const uint64_t resident = model.value()->resident_bytes();
    spdlog::info("{}; {} threads{}; weights {}", model.value()->exec().kernels.describe(), options.num_threads, cpus,
                 resident == 0 ? "mapped" : fmt::format("resident, {} MB", resident / 1'000'000));
    if (const StreamedWeights* streamed = model.value()->streamed()) spdlog::info("{}", streamed->summary());
    const Status tokenizer = model.value()->tokenizer().status();
    if (!tokenizer.is_ok() && tokenizer.code() != StatusCode::kNotFound) {
      spdlog::warn("no tokenizer, token ids only: {}", tokenizer.message());
    }
  }
  return model;
}

}  // namespace tandem::app
