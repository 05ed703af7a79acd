#include "engine/routing_trace.h"

#include <utility>

#include "base/cat.h"

namespace tandem {

Result<RoutingTrace> RoutingTrace::create(const std::string& path) {
  RoutingTrace trace(path);
  trace.out_.open(path, std::ios::binary | std::ios::trunc);
  if (!trace.out_) return Status::io(cat(path, ": cannot be written"));
  return trace;
}

void RoutingTrace::on_router(int64_t layer, const MatrixView<const int32_t>& topk_ids, const MatrixView<const float>&) {
  // Layers ascend within a step: an earlier one, or the same, begins the next.
  if (last_layer_ && layer <= *last_layer_) write_rows();
  last_layer_ = layer;
  if (!recording_) return;
  rows_.resize(static_cast<size_t>(topk_ids.shape[0]));
  for (size_t t = 0; t < rows_.size(); ++t) {
    std::string& row = rows_[t];
    row += row.empty() ? "[" : ", [";
    for (int64_t j = 0; j < topk_ids.shape[1]; ++j) {
      row += cat(j == 0 ? "" : ", ", topk_ids(static_cast<int64_t>(t), j));
    }
    row += "]";
  }
}

void RoutingTrace::write_rows() {
  for (const std::string& row : rows_) out_ << cat("{\"tok\": ", num_tokens_++, ", \"layers\": [", row, "]}\n");
  rows_.clear();
}

Status RoutingTrace::finish() {
  write_rows();
  out_.close();
  return out_.good() ? Status::ok() : Status::io(cat(path_, ": cannot be written to its end"));
}

}  // namespace tandem
