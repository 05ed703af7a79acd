// The declared quantisation (model.md §1.5): refused unless it is weight-only MXFP4 in groups of 32. What is packed is
// decided by the tensors on disk; the ignore list is not read.
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "config/model_config_parts.h"

namespace tandem {
namespace {

constexpr std::string_view kFormat = "mxfp4-pack-quantized";

void check_group(const JsonFields& group) {
  group.expect_text("format", kFormat);
  group.expect_null("input_activations");
  group.expect_null("output_activations");
  const JsonFields weights = group.object("weights");
  weights.expect_text("type", "float");
  weights.expect_integer("num_bits", 4);
  weights.expect_text("strategy", "group");
  weights.expect_integer("group_size", 32);
  weights.expect_boolean("symmetric", true);
  weights.expect_boolean("dynamic", false);
  weights.expect_text("scale_dtype", "torch.uint8");
  weights.expect_null("zp_dtype");
  weights.expect_null("actorder");
}

}  // namespace

void read_quantization(const JsonFields& owner, ModelConfig& config) {
  if (!owner.has("quantization_config")) return;
  const JsonFields quantization = owner.object("quantization_config");
  const nlohmann::json* value = owner.find("quantization_config");
  if (!value->is_object()) return;
  quantization.expect_text("quant_method", "compressed-tensors");
  quantization.expect_text("format", kFormat);
  quantization.expect_null("kv_cache_scheme");
  bool stated = quantization.has("format");
  const JsonFields groups = quantization.object("config_groups");
  if (const nlohmann::json* list = quantization.find("config_groups"); list != nullptr && list->is_object()) {
    for (const auto& [name, unused] : list->items()) {
      const JsonFields group = groups.object(name);
      check_group(group);
      stated = stated || group.has("format");
    }
  }
  if (!stated) quantization.problem("format", cat('"', kFormat, "\" here or in config_groups"));
  config.declares_mxfp4 = true;
}

}  // namespace tandem
