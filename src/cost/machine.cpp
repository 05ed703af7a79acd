#include "cost/machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/cat.h"

namespace tandem {
namespace {

// Public data sheets: SXM boards for the data-centre parts, reference clocks for the others.
constexpr double kPcie4 = 25e9;
constexpr double kPcie5 = 50e9;
constexpr std::array kGpus = {
    GpuFacts{"A100", 80e9, 2.039e12, 312e12, kPcie4},    GpuFacts{"H100", 80e9, 3.35e12, 989e12, kPcie5},
    GpuFacts{"H200", 141e9, 4.8e12, 989e12, kPcie5},     GpuFacts{"B200", 180e9, 8e12, 2250e12, kPcie5},
    GpuFacts{"MI300X", 192e9, 5.3e12, 1307e12, kPcie5},  GpuFacts{"L40S", 48e9, 0.864e12, 362e12, kPcie4},
    GpuFacts{"RTX3090", 24e9, 0.936e12, 71e12, kPcie4},  GpuFacts{"RTX4090", 24e9, 1.008e12, 165e12, kPcie4},
    GpuFacts{"RTX5090", 32e9, 1.792e12, 209e12, kPcie5},
};

std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

Status unknown_gpu(std::string_view text) {
  std::string names;
  for (const GpuFacts& gpu : kGpus) names += cat(names.empty() ? "" : ", ", gpu.name);
  return Status::invalid(cat("--gpu: expected one of ", names, ", a number of them such as 8xH200, or ",
                             "memory,bandwidth,FLOPS such as 24GB,1TB/s,165TFLOPS; found \"", text, "\""));
}

}  // namespace

Efficiency cpu_efficiency() {
  return {.memory = 0.85,
          .decode_flops = 0.45,
          .prefill_flops = 0.85,
          .attention_flops = 0.3,
          .disk = 0.9,
          .overlap = 0.5,
          .layer_seconds = 10e-6,
          .row_seconds = 12e-6};
}

Efficiency gpu_efficiency() {
  return {.memory = 0.75,
          .decode_flops = 0.5,
          .prefill_flops = 0.5,
          .attention_flops = 0.4,
          .disk = 0.9,
          .overlap = 1.0,
          .layer_seconds = 20e-6,
          .row_seconds = 0.0};
}

std::span<const GpuFacts> known_gpus() { return kGpus; }

std::optional<double> parse_quantity(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number <= 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  constexpr std::string_view kFactors = "kMGTP";
  if (!unit.empty()) {
    const size_t factor = unit[0] == 'K' ? 0 : kFactors.find(unit[0]);
    if (factor != std::string_view::npos) {
      const bool binary = unit.size() > 1 && unit[1] == 'i';
      number *= std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(factor + 1));
      unit.remove_prefix(binary ? 2 : 1);
    }
  }
  for (const std::string_view known : {"", "B", "B/s", "FLOPS", "FLOP/s", "FLOP"}) {
    if (unit == known) return number;
  }
  return std::nullopt;
}

Result<Machine> parse_gpu(std::string_view text) {
  Machine machine;
  machine.is_gpu = true;
  machine.name = text;
  if (text.find(',') != std::string_view::npos) {
    std::array<std::optional<double>, 3> parts;
    size_t count = 0;
    for (std::string_view rest = text; count < parts.size(); ++count) {
      const size_t comma = count + 1 < parts.size() ? rest.find(',') : std::string_view::npos;
      parts[count] = parse_quantity(rest.substr(0, comma));
      if (!parts[count]) return unknown_gpu(text);
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    if (count + 1 != parts.size()) return unknown_gpu(text);
    machine.memory_bytes = parts[0];
    machine.memory_rate = parts[1];
    machine.flops_rate = parts[2];
    machine.host_rate = kPcie4;
    return machine;
  }
  std::string name = plain(text);
  int64_t number = 1;
  const size_t times = name.find('X');
  if (times != std::string::npos && times > 0 &&
      std::all_of(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(times),
                  [](unsigned char c) { return std::isdigit(c) != 0; })) {
    const auto parsed = std::from_chars(name.data(), name.data() + times, number);
    if (parsed.ec != std::errc{} || number < 1 || number > 65536) return unknown_gpu(text);
    name.erase(0, times + 1);
  }
  for (const GpuFacts& gpu : kGpus) {
    if (name != gpu.name) continue;
    const auto n = static_cast<double>(number);
    machine.name = number == 1 ? std::string(gpu.name) : cat(number, " × ", gpu.name);
    machine.memory_bytes = n * gpu.memory_bytes;
    machine.memory_rate = n * gpu.memory_rate;
    machine.flops_rate = n * gpu.flops_rate;
    machine.host_rate = n * gpu.host_rate;
    return machine;
  }
  return unknown_gpu(text);
}

}  // namespace tandem
