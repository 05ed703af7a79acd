// engine/self_test.h: a checkpoint judged by itself: the same tokens in every way the engine can run them, and by the
// reference kernels, must give the same logits. Needs no data but the checkpoint; a golden file, when there is one,
// adds what another machine found.
//
//   finite      every logit is a number
//   chunks      prefill in chunks ≡ in one, bitwise (at multiples of the KDA chunk)
//   batch       other sequences in the step change nothing, bitwise, in prefill and in decode
//   decode      token by token ≡ prefill, within rounding
//   reference   the plain-loop kernels ≡ the chosen ones, within rounding, on the first rows
//   golden      logits of a file ≡ the model's, within rounding
//   Of a streamed model the reference is loaded within the same budget, beside as few of the model's experts as a step
//   needs, and skipped where there is no room for it. Rounding: engine/test_run.h. Threading: engine thread only.
#pragma once

#include <string>
#include <vector>

#include "base/function_ref.h"
#include "engine/doctor/doctor_check.h"
#include "engine/loaded_model.h"

namespace tandem {

struct SelfTestOptions {
  int64_t rows = 24;                // of every test but the reference's: more than one KDA chunk
  int64_t reference_rows = 8;       // at most; the reference is slow
  double reference_seconds = 60.0;  // no further row is begun after that
  std::string golden_path;          // empty: <model>/golden_logits.safetensors when it is there
};

// What the test's steps need beside the weights, for a model that is loaded within a budget.
MemoryOptions self_test_memory(const ModelConfig& config, const SelfTestOptions& options);

// Each check is told as it is done, in the area "self_test".
void run_self_test(LoadedModel& model, const SelfTestOptions& options, FunctionRef<void(DoctorCheck)> report);

// The model's own logits for the self-test's tokens, as a golden file.
Status write_self_test_golden(LoadedModel& model, const SelfTestOptions& options, const std::string& path);

}  // namespace tandem
