// engine/routing_trace.h: which experts each token chose, written as it happens: one JSON object a line,
//   {"tok": 0, "layers": [[3, 17, …], …]}
// with `tok` counted from 0 over the whole file and, for each MoE layer in order, the ids in ascending order. The
// format of the routing traces that the WASTE project publishes. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/observer.h"

namespace tandem {

class RoutingTrace final : public StepObserver {
 public:
  static Result<RoutingTrace> create(const std::string& path);

  // Rows of steps are written only while recording; off at first.
  void record(bool on) { recording_ = on; }
  void on_router(int64_t layer, const MatrixView<const int32_t>& topk_ids,
                 const MatrixView<const float>& topk_weights) override;
  // Writes what is left. kIo when anything could not be written.
  Status finish();
  int64_t num_tokens() const { return num_tokens_; }

 private:
  explicit RoutingTrace(std::string path) : path_(std::move(path)) {}
  void write_rows();

  std::string path_;
  std::ofstream out_;
  bool recording_ = false;
  std::optional<int64_t> last_layer_;
  std::vector<std::string> rows_;  // of the step in work: the layers so far
  int64_t num_tokens_ = 0;
};

}  // namespace tandem
