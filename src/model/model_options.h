// model/model_options.h: the numeric choices of a run that the checkpoint leaves open.
#pragma once

#include "kernels/moe/experts.h"
#include "tensor/dtype.h"

namespace tandem {

struct ModelOptions {
  // kF32: class F of the specification, the default. kBF16: every operator's output is rounded to bf16 (class R at
  // operator boundaries); scores, gates, states and sums inside an operator stay f32.
  DType activation_dtype = DType::kF32;
  ExpertAct expert_act = ExpertAct::kF32;  // routed-expert inputs as f32 or rounded to MXFP8, as deployed
};

}  // namespace tandem
