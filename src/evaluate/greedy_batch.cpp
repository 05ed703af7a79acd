#include "evaluate/greedy_batch.h"

#include <algorithm>
#include <array>

#include "cache/sequence_cache.h"
#include "sample/sampler.h"

namespace tandem {
namespace {

class GreedyBatch {
 public:
  GreedyBatch(LoadedModel& model, const std::vector<GreedyTask>& tasks, const GreedyBatchOptions& options,
              FunctionRef<void(int64_t, int64_t)> progress)
      : model_(model), tasks_(tasks), options_(options), progress_(progress), replies_(tasks.size()) {}

  Result<std::vector<GreedyReply>> run() {
    SamplingParams greedy;
    greedy.temperature = 0;
    auto sampler = Sampler::create(greedy, model_.config().vocab_size, 0);
    if (!sampler.is_ok()) return sampler.status();
    sampler_.emplace(std::move(sampler).value());
    while (next_task_ < tasks_.size() || !running_.empty()) {
      while (has_room()) TANDEM_RETURN_IF_ERROR(admit());
      TANDEM_RETURN_IF_ERROR(decode_step());
    }
    return std::move(replies_);
  }

 private:
  struct Running {
    size_t task = 0;
    SequenceCache cache;
    TokenId next;  // chosen, not yet run
  };

  int64_t needed_tokens(size_t task) const {
    return static_cast<int64_t>(tasks_[task].prompt.size()) + tasks_[task].max_tokens;
  }

  bool has_room() const {
    if (next_task_ == tasks_.size()) return false;
    if (running_.empty()) return true;
    return static_cast<int64_t>(running_.size()) < std::max<int64_t>(options_.max_sequences, 1) &&
           cached_tokens_ + needed_tokens(next_task_) <= options_.max_cached_tokens;
  }

  // Prefills the next prompt and chooses its first token.
  Status admit() {
    const GreedyTask& task = tasks_[next_task_];
    TANDEM_CHECK(!task.prompt.empty() && task.max_tokens >= 1, "a task has a prompt and room for a reply");
    Running sequence{next_task_++, take_cache(), TokenId()};
    TANDEM_RETURN_IF_ERROR(sequence.cache.reserve(needed_tokens(sequence.task)));
    const std::array<SequenceCacheView, 1> views = {sequence.cache.view()};
    const auto length = static_cast<int64_t>(task.prompt.size());
    for (int64_t begin = 0; begin < length;) {
      const int64_t count = std::min(options_.prefill_chunk, length - begin);
      const bool is_last = begin + count == length;
      plan_.tokens.assign(task.prompt.begin() + begin, task.prompt.begin() + begin + count);
      plan_.sequences = {{.cache = 0,
                          .num_tokens = count,
                          .num_computed_tokens = begin,
                          .mode = StepMode::kPrefill,
                          .logits = is_last ? LogitsWanted::kLast : LogitsWanted::kNone,
                          .captures = {}}};
      const auto logits = model_.model().forward(model_.exec(), plan_, views);
      if (!logits.is_ok()) return logits.status();
      begin += count;
      if (!is_last) continue;
      TANDEM_RETURN_IF_ERROR(choose(logits.value().row(0), sequence.next));
    }
    cached_tokens_ += needed_tokens(sequence.task);
    if (take(sequence)) running_.push_back(std::move(sequence));
    return Status::ok();
  }

  // One token of every running sequence.
  Status decode_step() {
    if (running_.empty()) return Status::ok();
    plan_.tokens.clear();
    plan_.sequences.clear();
    std::vector<SequenceCacheView> views;
    for (Running& sequence : running_) {
      plan_.tokens.push_back(sequence.next);
      plan_.sequences.push_back({.cache = static_cast<int64_t>(views.size()),
                                 .num_tokens = 1,
                                 .num_computed_tokens = sequence.cache.length(),
                                 .mode = StepMode::kDecode,
                                 .logits = LogitsWanted::kLast,
                                 .captures = {}});
      views.push_back(sequence.cache.view());
    }
    const auto logits = model_.model().forward(model_.exec(), plan_, views);
    if (!logits.is_ok()) return logits.status();
    for (size_t i = 0; i < running_.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(choose(logits.value().row(static_cast<int64_t>(i)), running_[i].next));
    }
    std::vector<Running> still_running;
    for (Running& sequence : running_) {
      if (take(sequence)) still_running.push_back(std::move(sequence));
    }
    running_ = std::move(still_running);
    return Status::ok();
  }

  Status choose(const float* logits, TokenId& token) {
    const auto vocab_size = static_cast<size_t>(model_.config().vocab_size);
    const auto chosen = sampler_->sample({logits, vocab_size}, scratch_);
    if (chosen.is_ok()) token = chosen.value();
    return chosen.status();
  }

  // The chosen token joins the reply or ends it. False: the sequence is over and its cache is free.
  bool take(Running& sequence) {
    GreedyReply& reply = replies_[sequence.task];
    const auto& stops = options_.stop_tokens;
    if (std::find(stops.begin(), stops.end(), sequence.next) != stops.end()) {
      reply.finish_reason = FinishReason::kStop;
    } else {
      reply.tokens.push_back(sequence.next);
      if (static_cast<int64_t>(reply.tokens.size()) < tasks_[sequence.task].max_tokens) return true;
      reply.finish_reason = FinishReason::kLength;
    }
    cached_tokens_ -= needed_tokens(sequence.task);
    sequence.cache.reset();
    free_caches_.push_back(std::move(sequence.cache));
    progress_(++done_, static_cast<int64_t>(tasks_.size()));
    return false;
  }

  SequenceCache take_cache() {
    if (free_caches_.empty()) return SequenceCache(model_.cache_layout());
    SequenceCache cache = std::move(free_caches_.back());
    free_caches_.pop_back();
    return cache;
  }

  LoadedModel& model_;
  const std::vector<GreedyTask>& tasks_;
  const GreedyBatchOptions& options_;
  FunctionRef<void(int64_t, int64_t)> progress_;
  std::vector<GreedyReply> replies_;
  std::optional<Sampler> sampler_;
  SamplerScratch scratch_;
  StepPlan plan_;
  std::vector<Running> running_;
  std::vector<SequenceCache> free_caches_;  // reset; pages are kept
  size_t next_task_ = 0;
  int64_t done_ = 0;
  int64_t cached_tokens_ = 0;  // that the running sequences may come to hold
};

}  // namespace

Result<std::vector<GreedyReply>> decode_greedily(LoadedModel& model, const std::vector<GreedyTask>& tasks,
                                                 const GreedyBatchOptions& options,
                                                 FunctionRef<void(int64_t, int64_t)> progress) {
  return GreedyBatch(model, tasks, options, progress).run();
}

}  // namespace tandem
