#include "engine/self_test.h"

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "engine/golden_logits.h"
#include "engine/test_run.h"
#include "kernels/kda/kda.h"

namespace tandem {
namespace {

constexpr int64_t kSequences = 4;   // together in a step: check_batch()
constexpr int64_t kGoldenRows = 8;  // with logits, of those a golden file gets

class SelfTest {
 public:
  SelfTest(LoadedModel& model, const SelfTestOptions& options, FunctionRef<void(DoctorCheck)> report)
      : model_(model),
        options_(options),
        report_(report),
        tokens_(self_test_tokens(model.config().vocab_size, std::min(options.rows, model.context_limit()))) {}

  void run() {
    TestRunOptions keep;
    keep.keep_router_reads = true;
    Result<TestRun> whole = run_test_tokens(model_, tokens_, keep);
    if (!whole.is_ok()) return tell("finite", Verdict::kFailed, whole.status().message());
    whole_ = std::move(whole).value();
    check_finite();
    check_chunks();
    check_batch();
    check_decode();
    check_reference();
    check_golden();
  }

 private:
  void tell(std::string_view name, Verdict verdict, std::string message) {
    report_({.area = "self_test", .name = std::string(name), .verdict = verdict, .message = std::move(message)});
  }

  void check_finite() {
    const std::optional<std::string> fault = find_non_finite(whole_);
    if (fault) {
      return tell("finite", Verdict::kFailed,
                  cat(*fault, ", expected a finite number: a weight is damaged, or a scale of a routed expert is NaN"));
    }
    tell("finite", Verdict::kOk, cat("all logits of ", whole_.rows, " tokens are finite"));
  }

  void tell_bitwise(std::string_view name, const std::optional<std::string>& difference, std::string_view what) {
    if (difference) return tell(name, Verdict::kFailed, cat(what, " differ in bits at ", *difference));
    tell(name, Verdict::kOk, cat(what, " are equal bit for bit, ", whole_.rows, " rows"));
  }

  void check_chunks() {
    TestRunOptions chunked;
    chunked.chunk = kKdaChunk;
    const Result<TestRun> run = run_test_tokens(model_, tokens_, chunked);
    if (!run.is_ok()) return tell("chunks", Verdict::kFailed, run.status().message());
    tell_bitwise("chunks", find_bit_difference(whole_, run.value()), "prefill in chunks of 16 and prefill in one");
  }

  void check_batch() {
    std::vector<TokenId> reversed(tokens_.rbegin(), tokens_.rend());
    std::vector<TokenId> shorter(tokens_.begin(), tokens_.begin() + (static_cast<int64_t>(tokens_.size()) + 1) / 2);
    TestRunOptions batched;
    batched.neighbours = {reversed, shorter, reversed};
    const Result<TestRun> run = run_test_tokens(model_, tokens_, batched);
    if (!run.is_ok()) return tell("batch", Verdict::kFailed, run.status().message());
    if (const auto difference = find_bit_difference(whole_, run.value())) {
      return tell_bitwise("batch", difference, "prefill alone and among three other sequences");
    }
    TestRunOptions decode;
    decode.decode = true;
    Result<TestRun> alone = run_test_tokens(model_, tokens_, decode);
    if (!alone.is_ok()) return tell("batch", Verdict::kFailed, alone.status().message());
    decode_ = std::move(alone).value();
    batched.decode = true;
    const Result<TestRun> together = run_test_tokens(model_, tokens_, batched);
    if (!together.is_ok()) return tell("batch", Verdict::kFailed, together.status().message());
    tell_bitwise("batch", find_bit_difference(decode_, together.value()),
                 "prefill and decode alone and among three other sequences");
  }

  void check_decode() {
    if (decode_.rows == 0) return tell("decode", Verdict::kSkipped, "there is no run to compare: see batch");
    tell_close("decode", compare_runs(model_, whole_, decode_), "prefill and decode, token by token");
  }

  void tell_close(std::string_view name, const RunDifference& difference, std::string_view what) {
    DoctorCheck check{.area = "self_test", .name = std::string(name)};
    check.values = {{"rows_compared", difference.rows_compared},
                    {"largest_difference", difference.worst},
                    {"tolerance", difference.tolerance}};
    check.message =
        cat(what, ": ", difference.rows_compared, " rows, largest difference of a logit ",
            static_cast<float>(difference.worst), ", rounding allows ", static_cast<float>(difference.tolerance));
    if (!difference.is_within()) {
      check.verdict = Verdict::kFailed;
      check.message += cat("; ", difference.where);
    } else if (!difference.route_is_tie) {
      check.verdict = Verdict::kFailed;
    } else if (difference.rows_compared == 0) {
      check.verdict = Verdict::kWarning;
      check.message = cat(what, ": nothing could be compared");
    }
    if (!difference.route_difference.empty()) check.message += cat("; ", difference.route_difference);
    report_(std::move(check));
  }

  void check_reference() {
    if (model_.exec().kernels.backend == KernelBackend::kRef) {
      return tell("reference", Verdict::kSkipped, "the reference kernels were chosen: there is nothing to compare");
    }
    LoadOptions load;
    load.model = model_.model().options();
    load.cache_dtype = model_.cache_layout().dtype;
    load.kernels = KernelBackend::kRef;
    load.num_threads = model_.exec().pool.num_threads();
    load.weights = WeightPlacement::kMapped;  // as the file has them, whatever the copies are that the model reads
    load.context = model_.context_limit();
    if (model_.experts() != nullptr) {
      load.memory = {.ram_bytes = model_.streamed()->budget_bytes(), .step_rows = 1};
      (void)model_.experts()->resize(0);  // to the fewest; the next step takes back what is free by then
    }
    const Result<std::unique_ptr<LoadedModel>> reference = LoadedModel::load(model_.dir(), load);
    if (!reference.is_ok() && reference.status().code() == StatusCode::kResourceExhausted) {
      return tell("reference", Verdict::kSkipped,
                  cat("no room for the model a second time, beside the first: ", reference.status().message()));
    }
    if (!reference.is_ok()) return tell("reference", Verdict::kFailed, reference.status().message());
    const size_t rows = std::min(tokens_.size(), static_cast<size_t>(options_.reference_rows));
    TestRunOptions by_row;
    by_row.chunk = 1;
    by_row.stop_after_seconds = options_.reference_seconds;
    const Result<TestRun> run = run_test_tokens(*reference.value(), std::span(tokens_).first(rows), by_row);
    if (!run.is_ok()) return tell("reference", Verdict::kFailed, run.status().message());
    tell_close("reference", compare_runs(model_, whole_, run.value()),
               cat("reference kernels and ", kernel_backend_name(model_.exec().kernels.backend)));
  }

  void check_golden() {
    std::string path = options_.golden_path;
    if (path.empty()) {
      path = cat(model_.dir(), "/", kGoldenLogitsName);
      std::error_code error;
      if (!std::filesystem::exists(path, error)) {
        return tell("golden", Verdict::kSkipped,
                    cat("no ", kGoldenLogitsName, " in the folder; --write-golden FILE makes one from this machine"));
      }
    }
    const Result<std::vector<GoldenPrompt>> prompts = read_golden_logits(path, model_.config().vocab_size);
    if (!prompts.is_ok()) return tell("golden", Verdict::kFailed, prompts.status().message());
    for (const GoldenPrompt& prompt : prompts.value()) {
      if (static_cast<int64_t>(prompt.tokens.size()) > model_.context_limit()) {
        tell("golden", Verdict::kSkipped,
             cat(path, ": prompt \"", prompt.id, "\" has ", prompt.tokens.size(), " tokens and the context holds ",
                 model_.context_limit()));
        continue;
      }
      TestRunOptions last_rows;
      last_rows.keep_router_reads = true;
      last_rows.logit_rows = prompt.run.logit_rows;
      const Result<TestRun> run = run_test_tokens(model_, prompt.tokens, last_rows);
      if (!run.is_ok()) {
        tell("golden", Verdict::kFailed, run.status().message());
        continue;
      }
      tell_close("golden", compare_runs(model_, run.value(), prompt.run),
                 cat("prompt \"", prompt.id, "\" of ", path, " and this machine"));
    }
  }

  LoadedModel& model_;
  const SelfTestOptions& options_;
  FunctionRef<void(DoctorCheck)> report_;
  const std::vector<TokenId> tokens_;
  TestRun whole_;
  TestRun decode_;
};

}  // namespace

MemoryOptions self_test_memory(const ModelConfig& config, const SelfTestOptions& options) {
  const CacheLayout layout = make_cache_layout(config, DType::kF32);
  MemoryOptions memory;
  memory.step_rows = kSequences * options.rows;
  memory.step_sequences = kSequences;
  memory.step_logit_rows = options.rows;
  memory.cache_bytes = kSequences * (layout.state_bytes() + options.rows * layout.latent_bytes_per_token());
  return memory;
}

void run_self_test(LoadedModel& model, const SelfTestOptions& options, FunctionRef<void(DoctorCheck)> report) {
  SelfTest(model, options, report).run();
}

Status write_self_test_golden(LoadedModel& model, const SelfTestOptions& options, const std::string& path) {
  GoldenPrompt prompt;
  prompt.id = "self_test";
  prompt.tokens = self_test_tokens(model.config().vocab_size, std::min(options.rows, model.context_limit()));
  TestRunOptions last_rows;
  last_rows.logit_rows = kGoldenRows;
  Result<TestRun> run = run_test_tokens(model, prompt.tokens, last_rows);
  if (!run.is_ok()) return run.status();
  prompt.run = std::move(run).value();
  if (const std::optional<std::string> fault = find_non_finite(prompt.run)) {
    return Status::non_finite(cat(model.dir(), ": ", *fault, ": no golden file is written"));
  }
  return write_golden_logits(path, {prompt});
}

}  // namespace tandem
