// model/expert_source.h: where a layer gets routed experts that are not all in memory.
//
//   begin() names what a step needs of a layer: the union over its tokens, so that each expert is read once. next()
//   then hands out parts in ascending ranges of ids; a part's needed experts are in memory until the next call, and the
//   parts together are what was needed. moe_experts over the parts, each added to the sums so far, is bitwise the one
//   call over all (kernels/moe/experts.h), so how the parts fall changes no number.
//   predict() is advice: experts that a later layer of this step will probably need. Reads may start early.
//   A failed begin() or next() names the expert that could not be had and ends the layer; begin() starts the next one.
//   Threading: engine thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.h"
#include "tensor/weight_view.h"

namespace tandem {

struct ExpertPart {
  int64_t expert_begin = 0;
  int64_t expert_end = 0;
  std::span<const ExpertWeights> experts;  // of the layer; those needed in [begin, end) are in memory
};

class ExpertSource {
 public:
  virtual ~ExpertSource() = default;
  // A step begins; may refuse it.
  virtual Status begin_step() { return Status::ok(); }
  // Between two operators: the place to hand a drive its next reads. Free when there are none.
  virtual void advance() {}
  virtual Status begin(int64_t layer, std::span<const int32_t> needed) = 0;  // ascending, distinct
  virtual Result<std::optional<ExpertPart>> next() = 0;                      // nothing: all parts have been given
  virtual void predict(int64_t layer, std::span<const int32_t> likely) = 0;  // distinct, the likeliest first
};

}  // namespace tandem
