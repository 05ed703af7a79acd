// Any bytes as config.json: a Status or a configuration whose derived numbers stay in range, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "config/model_config.h"
#include "weights/tensor_names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = tandem::parse_model_config({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!config.is_ok()) {
    TANDEM_CHECK(!config.status().message().empty(), "a refusal says why");
    return 0;
  }
  const tandem::ModelConfig& c = config.value();
  TANDEM_CHECK(static_cast<int64_t>(c.kinds.size()) == c.num_hidden_layers, "one kind a layer");
  TANDEM_CHECK(c.max_attn_res_sources() >= 0 && c.kda_projection_size() >= 0, "derived sizes do not overflow");
  if (c.num_hidden_layers * (c.num_experts + 1) > 20000) return 0;  // the walk is linear in these
  int64_t bytes = 0;
  tandem::for_each_expected_tensor(c, [&bytes](const tandem::ExpectedTensor& tensor) {
    TANDEM_CHECK(tensor.num_elements() > 0, "extents are positive");
    bytes += tensor.released_bytes();
    TANDEM_CHECK(bytes > 0, "the total does not overflow");
  });
  return 0;
}
