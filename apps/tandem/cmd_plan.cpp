// tandem plan: what a model needs and how fast it can be, from its configuration and headers: no weight is read.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/cat.h"
#include "command.h"
#include "cost/model_plan.h"
#include "engine/memory_info.h"
#include "kernels/ceiling/ceiling.h"
#include "kernels/kernel_table.h"
#include "plan_output.h"

namespace tandem::app {
namespace {

struct PlanFlags {
  CommonFlags common;
  std::string model;
  std::string ram, gpu, disk_rate, memory_rate, flops_rate;
  bool no_measure = false;
  bool compare = false;
  std::string cache_dtype = "f32";
  std::string path = "fast";
  PlanOptions options;
  CompareOptions attentions;
};

Status read_rate(std::string_view flag, const std::string& text, std::optional<double>& rate) {
  if (text.empty()) return Status::ok();
  rate = parse_quantity(text);
  if (rate) return Status::ok();
  return Status::invalid(
      cat(flag, ": expected a positive number such as 64GB, 1.5TiB, 6GB/s or 989TFLOPS, found \"", text, "\""));
}

// The rates that no flag gave, measured on this machine.
Status measure(const PlanFlags& flags, const KernelTable& kernels, Machine& machine) {
  if (flags.no_measure || machine.is_gpu || (machine.memory_rate && machine.flops_rate)) return Status::ok();
  const Result<ThreadPlacement> threads = resolve_threads(flags.common);
  if (!threads.is_ok()) return threads.status();
  ThreadPool pool(threads.value().num_threads, threads.value().cpus);
  Arena arena;
  const MachineCeilings ceilings = measure_ceilings(ExecContext{pool, arena, kernels});
  if (!machine.memory_rate && ceilings.read_gb_s > 0) machine.memory_rate = ceilings.read_gb_s * 1e9;
  if (!machine.flops_rate) machine.flops_rate = ceilings.f32_gflop_s * 1e9;
  machine.name += ", measured";
  return Status::ok();
}

Result<PlanOptions> read_options(const PlanFlags& flags) {
  PlanOptions options = flags.options;
  Machine machine;
  options.efficiency = flags.gpu.empty() ? cpu_efficiency() : gpu_efficiency();
  const Result<ThreadPlacement> threads = resolve_threads(flags.common);
  if (!threads.is_ok()) return threads.status();
  options.threads = threads.value().num_threads;
  const Result<std::optional<KernelBackend>> wanted = parse_kernel_backend(flags.common.kernels);
  if (!wanted.is_ok()) return wanted.status();
  const Result<KernelTable> kernels = make_kernel_table(detect_cpu_features(), wanted.value());
  if (!kernels.is_ok()) return kernels.status();
  options.kernels = kernels.value().backend;

  std::optional<double> ram;
  TANDEM_RETURN_IF_ERROR(read_rate("--ram", flags.ram, ram));
  if (flags.gpu.empty()) {
    machine.name = cat(options.threads, options.threads == 1 ? " thread" : " threads");
    machine.memory_bytes = ram;
    const int64_t available = available_memory_bytes();
    if (!ram && available > 0) machine.memory_bytes = static_cast<double>(available);
  } else {
    Result<Machine> gpu = parse_gpu(flags.gpu);
    if (!gpu.is_ok()) return gpu.status();
    machine = std::move(gpu).value();
    machine.host_bytes = ram.value_or(0);
  }
  TANDEM_RETURN_IF_ERROR(read_rate("--disk-bw", flags.disk_rate, machine.disk_rate));
  TANDEM_RETURN_IF_ERROR(read_rate("--mem-bw", flags.memory_rate, machine.memory_rate));
  TANDEM_RETURN_IF_ERROR(read_rate("--flops", flags.flops_rate, machine.flops_rate));
  TANDEM_RETURN_IF_ERROR(measure(flags, kernels.value(), machine));
  options.machine = std::move(machine);
  options.cache_dtype = flags.cache_dtype == "bf16" ? DType::kBF16 : DType::kF32;
  options.path = flags.path == "reference" ? AttentionPath::kReference : AttentionPath::kFast;
  if (flags.compare) options.compare = flags.attentions;
  return options;
}

int run_plan(const PlanFlags& flags) {
  const Result<PlanOptions> options = read_options(flags);
  if (!options.is_ok()) {
    (void)report_error(options.status());
    return kExitUsage;
  }
  const Result<ModelPlan> plan = make_model_plan(flags.model, options.value());
  if (!plan.is_ok()) return report_error(plan.status());
  if (flags.common.json) {
    fmt::print("{}\n", plan_json(plan.value()));
  } else {
    fmt::print("{}", flags.compare ? compare_text(plan.value()) : plan_text(plan.value()));
  }
  return kExitOk;
}

void add_machine_flags(CLI::App* command, PlanFlags& flags) {
  command->add_option("--ram", flags.ram,
                      "memory for weights and caches, 64GB; with --gpu: of the host (default: what is available here)");
  command->add_option("--gpu", flags.gpu, "plan for a GPU: H100, 8xH200, RTX4090 … or memory,bandwidth,FLOPS");
  command->add_option("--disk-bw", flags.disk_rate, "bandwidth of the drive that weights are read from, 6GB/s");
  command->add_option("--mem-bw", flags.memory_rate, "read bandwidth of memory (default: measured)");
  command->add_option("--flops", flags.flops_rate, "FLOPs a second, 300GFLOPS (default: measured, f32)");
  command->add_flag("--no-measure", flags.no_measure, "take rates from flags alone");
}

}  // namespace

void register_plan(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();  // shared with the callback, which outlives this function
  CLI::App* command = app.add_subcommand("plan", "What a model needs and how fast it can be: memory, floors, limits");
  const CLI::Range count(int64_t{1}, kMaxCount);
  command->add_option("MODEL", flags->model, "model folder (headers will do), or a config.json")->required();
  add_machine_flags(command, *flags);
  command
      ->add_option("--context", flags->options.context, "tokens of a sequence (default: 32768, or the model's limit)")
      ->check(count);
  command->add_option("--sequences", flags->options.sequences, "sequences held at once")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--prompt", flags->options.prompt, "tokens of the prompt that TTFT is for (default: 2048)")
      ->check(count);
  command->add_option("--batch", flags->options.batches, "sequences decoded in one step (default: 1,8,32)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      ->add_option("--prefill-chunk", flags->options.prefill_chunk,
                   "tokens of one prefill step (default: 512, on a GPU 8192)")
      ->check(count);
  command->add_option("--cache-dtype", flags->cache_dtype, "f32 | bf16: KDA states, conv history and MLA latents")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--path", flags->path, "fast | reference: whose bytes are counted (reference stores all heads' K/V)")
      ->check(CLI::IsMember({"fast", "reference"}))
      ->capture_default_str();
  command->add_flag("--compare", flags->compare, "set the hybrid against full MLA, GQA and DSA of the same widths");
  command->add_option("--gqa-groups", flags->attentions.gqa_groups, "key/value heads of the compared GQA")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  add_common_flags(command, flags->common);
  command->footer(
      "Reads config.json and shard headers only; measures this machine for half a second unless told its rates.\n\n"
      "Examples:\n  tandem plan models/k3-mini\n"
      "  tandem plan configs/k3.json --ram 512GB --disk-bw 12GB/s --sequences 4 --context 65536\n"
      "  tandem plan configs/k3.json --gpu 16xH200 --cache-dtype bf16 --batch 1,64\n"
      "  tandem plan configs/k3.json --compare --gpu 16xH200 --cache-dtype bf16");
  command->callback([flags, &exit_code] { exit_code = run_plan(*flags); });
}

}  // namespace tandem::app
