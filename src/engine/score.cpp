#include "engine/score.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/cat.h"
#include "cache/sequence_cache.h"
#include "tensor/stored_floats.h"

namespace tandem {
namespace {

// One prompt on its way through the model.
struct Progress {
  const ScorePrompt* prompt = nullptr;
  SequenceCache cache;
  int64_t done = 0;
  PromptScore score;

  int64_t remaining() const { return static_cast<int64_t>(prompt->tokens.size()) - done; }
};

// Output tensors by name, filled row by row as positions are computed.
class Output {
 public:
  float* f32(const std::string& name, std::vector<int64_t> shape) { return values<float>(name, std::move(shape)); }
  int32_t* i32(const std::string& name, std::vector<int64_t> shape) { return values<int32_t>(name, std::move(shape)); }

  std::vector<ScoreTensor> take() { return std::move(tensors_); }

 private:
  template <class T>
  T* values(const std::string& name, std::vector<int64_t> shape) {
    const auto [at, inserted] = index_.emplace(name, tensors_.size());
    if (inserted) {
      int64_t elements = 1;
      for (const int64_t extent : shape) elements *= extent;
      tensors_.push_back({name, std::move(shape), std::vector<T>(static_cast<size_t>(elements))});
    }
    return std::get<std::vector<T>>(tensors_[at->second].values).data();
  }

  std::map<std::string, size_t> index_;
  std::vector<ScoreTensor> tensors_;
};

// Copies a step's rows to the positions of the prompts they belong to.
class Recorder : public StepObserver {
 public:
  Recorder(const ScoreOptions& options, Output& output) : options_(options), output_(output) {}

  void begin_step(const StepPlan& plan, std::vector<Progress*> running) {
    plan_ = &plan;
    running_ = std::move(running);
  }

  void on_tensor(Tap tap, int64_t layer, const MatrixView<const float>& rows) override {
    if (!options_.hidden) return;
    switch (tap) {
      case Tap::kLayerOut: return record(cat("layer.", layer, ".out"), rows);
      case Tap::kFinalIn: return record("final_in", rows);
      case Tap::kFinalHidden: return record("final_hidden", rows);
      default: return;
    }
  }

  void on_router(int64_t layer, const MatrixView<const int32_t>& ids, const MatrixView<const float>& weights) override {
    if (!options_.router) return;
    record(cat("layer.", layer, ".router_idx"), ids);
    record(cat("layer.", layer, ".router_w"), weights);
  }

  template <class T>
  void record(const std::string& what, const MatrixView<const T>& rows) {
    int64_t row = 0;
    for (size_t s = 0; s < running_.size(); ++s) {
      const Progress& progress = *running_[s];
      const std::string name = cat(progress.prompt->id, ".", what);
      const int64_t columns = rows.shape[1];
      const std::vector<int64_t> shape = {static_cast<int64_t>(progress.prompt->tokens.size()), columns};
      T* out;
      if constexpr (std::is_same_v<T, float>) {
        out = output_.f32(name, shape);
      } else {
        out = output_.i32(name, shape);
      }
      const int64_t count = plan_->sequences[s].num_tokens;
      for (int64_t i = 0; i < count; ++i, ++row) {
        std::memcpy(out + (progress.done + i) * columns, rows.row(row), static_cast<size_t>(columns) * sizeof(T));
      }
    }
  }

 private:
  const ScoreOptions& options_;
  Output& output_;
  const StepPlan* plan_ = nullptr;
  std::vector<Progress*> running_;
};

void record_kda_state(const CacheLayout& layout, const KdaState& state, const std::string& prefix, Output& output) {
  float* recurrent = output.f32(prefix + ".kda_state", {layout.kda_heads, layout.kda_head_dim, layout.kda_head_dim});
  load_floats(state.recurrent, state.dtype, {recurrent, static_cast<size_t>(layout.recurrent_elements())});
  std::vector<float> rows(static_cast<size_t>(layout.conv_elements()));
  load_floats(state.conv, state.dtype, rows);
  const int64_t channels = layout.conv_channels / 3;
  const char* const streams[] = {".conv_q", ".conv_k", ".conv_v"};
  for (int64_t stream = 0; stream < 3; ++stream) {
    // At rest a row is a time step; in files a row is a channel.
    float* conv = output.f32(prefix + streams[stream], {channels, layout.conv_rows});
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t t = 0; t < layout.conv_rows; ++t) {
        conv[c * layout.conv_rows + t] = rows[static_cast<size_t>(t * layout.conv_channels + stream * channels + c)];
      }
    }
  }
}

void record_mla_latent(const CacheLayout& layout, const MlaLatent& latent, const std::string& prefix, Output& output) {
  const int64_t width = layout.latent_width;
  float* out = output.f32(prefix + ".mla_latent", {latent.length, width});
  for (int64_t t = 0; t < latent.length; ++t) {
    const std::byte* row = latent.pages[static_cast<size_t>(t / latent.page_tokens)] +
                           t % latent.page_tokens * width * dtype_size(latent.dtype);
    load_floats(row, latent.dtype, {out + t * width, static_cast<size_t>(width)});
  }
}

// Adds the predictions that this step's logits make about the prompt's own next tokens.
Status accumulate(const MatrixView<float>& logits, int64_t first_row, int64_t count, Progress& progress) {
  for (int64_t i = 0; i < count; ++i) {
    const float* row = logits.row(first_row + i);
    const int64_t vocab = logits.shape[1];
    const int64_t position = progress.done + i;
    double max_logit = row[0];
    for (int64_t v = 0; v < vocab; ++v) {
      if (!std::isfinite(row[v])) {
        return Status::non_finite(cat("prompt \"", progress.prompt->id, "\" position ", position, ": logit ", v, " is ",
                                      row[v], ", expected a finite number"));
      }
      max_logit = std::max<double>(max_logit, row[v]);
    }
    const auto next = static_cast<size_t>(position + 1);
    if (next >= progress.prompt->tokens.size()) continue;
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(row[v] - max_logit);
    progress.score.negative_log_likelihood += max_logit + std::log(sum) - row[progress.prompt->tokens[next].value];
    ++progress.score.num_scored;
  }
  return Status::ok();
}

int64_t step_tokens(const ScoreOptions& options, const Progress& progress) {
  if (options.decode) return 1;
  if (options.prefill_chunk > 0) return std::min(options.prefill_chunk, progress.remaining());
  return progress.remaining();
}

Status run_step(LoadedModel& model, const ScoreOptions& options, const std::vector<Progress*>& running,
                Recorder& recorder) {
  StepPlan plan;
  std::vector<SequenceCacheView> views;
  for (Progress* progress : running) {
    const int64_t count = step_tokens(options, *progress);
    TANDEM_RETURN_IF_ERROR(progress->cache.reserve(progress->done + count));
    const auto begin = progress->prompt->tokens.begin() + progress->done;
    plan.tokens.insert(plan.tokens.end(), begin, begin + count);
    plan.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                              .num_tokens = count,
                              .num_computed_tokens = progress->done,
                              .mode = options.decode ? StepMode::kDecode : StepMode::kPrefill,
                              .logits = LogitsWanted::kAll,
                              .captures = {}});
    views.push_back(progress->cache.view());
  }
  recorder.begin_step(plan, running);
  const Result<MatrixView<float>> logits = model.model().forward(model.exec(), plan, views, &recorder);
  if (!logits.is_ok()) return logits.status();
  recorder.record<float>("logits", logits.value());
  int64_t row = 0;
  for (size_t s = 0; s < running.size(); ++s) {
    const int64_t count = plan.sequences[s].num_tokens;
    TANDEM_RETURN_IF_ERROR(accumulate(logits.value(), row, count, *running[s]));
    row += count;
    running[s]->done += count;
  }
  return Status::ok();
}

Status check_prompts(const LoadedModel& model, const std::vector<ScorePrompt>& prompts) {
  const int64_t vocab = model.config().vocab_size;
  std::string problems;
  for (const ScorePrompt& prompt : prompts) {
    if (static_cast<int64_t>(prompt.tokens.size()) > model.context_limit()) {
      problems += cat("\nprompt \"", prompt.id, "\" has ", prompt.tokens.size(), " tokens and the context holds ",
                      model.context_limit());
    }
    for (size_t i = 0; i < prompt.tokens.size(); ++i) {
      const int32_t id = prompt.tokens[i].value;
      if (id < 0 || id >= vocab) {
        problems += cat("\nprompt \"", prompt.id, "\" token ", i, " is ", id, ", expected an id in 0..", vocab - 1);
        break;
      }
    }
  }
  if (problems.empty()) return Status::ok();
  return Status::invalid(cat("prompts that cannot be scored:", problems));
}

}  // namespace

double ScoreResult::perplexity() const {
  double sum = 0;
  int64_t count = 0;
  for (const PromptScore& prompt : prompts) {
    sum += prompt.negative_log_likelihood;
    count += prompt.num_scored;
  }
  return std::exp(sum / static_cast<double>(count));
}

Result<ScoreResult> score(LoadedModel& model, const std::vector<ScorePrompt>& prompts, const ScoreOptions& options,
                          FunctionRef<void(int64_t, int64_t)> progress) {
  TANDEM_RETURN_IF_ERROR(check_prompts(model, prompts));
  int64_t total = 0, done = 0;
  for (const ScorePrompt& prompt : prompts) total += static_cast<int64_t>(prompt.tokens.size());

  Output output;
  Recorder recorder(options, output);
  ScoreResult result;
  // With --batch one group of all prompts, else a group for each.
  const size_t group_size = options.batch ? prompts.size() : 1;
  for (size_t group = 0; group < prompts.size(); group += group_size) {
    std::vector<Progress> members;
    for (size_t i = group; i < std::min(group + group_size, prompts.size()); ++i) {
      members.push_back({.prompt = &prompts[i],
                         .cache = SequenceCache(model.cache_layout()),
                         .done = 0,
                         .score = {.id = prompts[i].id,
                                   .num_tokens = static_cast<int64_t>(prompts[i].tokens.size()),
                                   .num_scored = 0,
                                   .negative_log_likelihood = 0}});
    }
    while (true) {
      std::vector<Progress*> running;
      int64_t before = 0;
      for (Progress& member : members) {
        before += member.done;
        if (member.remaining() > 0) running.push_back(&member);
      }
      if (running.empty()) break;
      TANDEM_RETURN_IF_ERROR(run_step(model, options, running, recorder));
      for (const Progress& member : members) done += member.done;
      done -= before;
      progress(done, total);
    }
    for (Progress& member : members) {
      for (size_t l = 0; options.state && l < member.cache.layers().size(); ++l) {
        const std::string prefix = cat(member.prompt->id, ".layer.", l);
        const LayerCache& layer = member.cache.layers()[l];
        if (const auto* state = std::get_if<KdaState>(&layer)) {
          record_kda_state(model.cache_layout(), *state, prefix, output);
        } else {
          record_mla_latent(model.cache_layout(), std::get<MlaLatent>(layer), prefix, output);
        }
      }
      result.prompts.push_back(member.score);
    }
  }
  result.tensors = output.take();
  return result;
}

}  // namespace tandem
