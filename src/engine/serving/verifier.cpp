#include "engine/serving/verifier.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/cat.h"
#include "base/check.h"
#include "sample/philox.h"
#include "sample/sampler.h"
#include "weights/atomic_file.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr SeqId kReader{kFirstVerifierSequence};  // stands on the cached prefix
constexpr SeqId kScratch{kFirstVerifierSequence + 1};
constexpr int64_t kGrid = 16;
constexpr int64_t kMaxChunk = 256;
constexpr int64_t kMaxAttempts = 3;

}  // namespace

Verifier::Verifier(LoadedModel& model, HybridCache& cache, const ServingOptions& options,
                   std::function<void(const std::string&)> on_failure)
    : model_(model),
      cache_(cache),
      options_(options),
      on_failure_(std::move(on_failure)),
      // Several times as many prefixes as the pool can hold: one that is forgotten here is no longer there either.
      book_(4 * (cache.stats().num_blocks + 1) * std::max<int64_t>(cache.layout().page_tokens / options.hash_unit, 1)),
      draw_seed_(random_seed()) {}

void Verifier::on_admitted(SeqId id, const std::string& request_id, std::span<const TokenId> tokens,
                           const CacheScope& scope, const PrefixMatch& match, bool may_verify) {
  Tracked& tracked = tracked_[id.value];
  tracked = {};
  tracked.request_id = request_id;
  tracked.scope = scope;
  tracked.prefix = hash_prefix_root("", options_.hash_unit, scope.salt);
  const int64_t hit = match.hit_tokens;
  extend_prefix(tracked, tokens.first(static_cast<size_t>(hit)));
  if (hit > 0) {
    const std::optional<ComputePath> path = book_.find(tracked.prefix);
    tracked.path = path.value_or(ComputePath{.spans = {}, .length = hit, .is_known = false});
  }
  // Latents that the cache has lost will be written by another path, perhaps. (Where only states went, latents stay.)
  Tracked ahead = tracked;
  for (const MissedRange& missed : match.missed) {
    const bool is_gone = missed.reason == MissReason::kEvicted || missed.reason == MissReason::kQuarantined;
    while (ahead.prefix_tokens + options_.hash_unit <= missed.end) {
      extend_prefix(ahead, tokens.first(static_cast<size_t>(ahead.prefix_tokens + options_.hash_unit)));
      if (is_gone && ahead.prefix_tokens > std::max(missed.begin, match.matched_tokens)) book_.erase(ahead.prefix);
    }
  }
  if (!may_verify || hit == 0) return;
  const double draw = philox_uniform(draw_seed_, static_cast<uint64_t>(counts_.hits++));
  if (draw >= options_.verify_rate) return;
  tracked.wanted_hit = hit;
  tracked.hit_prefix = tracked.prefix;
}

void Verifier::extend_prefix(Tracked& tracked, std::span<const TokenId> tokens) const {
  const int64_t unit = options_.hash_unit;
  while (tracked.prefix_tokens + unit <= static_cast<int64_t>(tokens.size())) {
    tracked.prefix = chain_prefix_hash(
        tracked.prefix,
        hash_prefix_unit(tokens.subspan(static_cast<size_t>(tracked.prefix_tokens), static_cast<size_t>(unit))));
    tracked.prefix_tokens += unit;
  }
}

void Verifier::on_committed(SeqId id, std::span<const TokenId> tokens, int64_t begin, int64_t num_tokens,
                            StepMode mode) {
  const auto at = tracked_.find(id.value);
  if (at == tracked_.end()) return;
  Tracked& tracked = at->second;
  tracked.path.append(begin, num_tokens, mode);
  while (tracked.prefix_tokens + options_.hash_unit <= tracked.path.length) {
    extend_prefix(tracked, tokens.first(static_cast<size_t>(tracked.prefix_tokens + options_.hash_unit)));
    book_.note(tracked.prefix, tracked.path.first(tracked.prefix_tokens));
  }
}

void Verifier::on_prompt_done(SeqId id, std::span<const TokenId> tokens, std::span<const float> logits) {
  const auto at = tracked_.find(id.value);
  if (at == tracked_.end() || !at->second.wanted_hit) return;
  Tracked& tracked = at->second;
  const int64_t hit = *tracked.wanted_hit;
  tracked.wanted_hit.reset();
  if (static_cast<int64_t>(jobs_.size()) >= options_.verify_queue || !tracked.path.is_known) {
    ++counts_.skipped;
    return;
  }
  jobs_.push_back({.request_id = tracked.request_id,
                   .tokens = {tokens.begin(), tokens.end()},
                   .scope = tracked.scope,
                   .hit = hit,
                   .hit_prefix = tracked.hit_prefix,
                   .path = tracked.path,
                   .logits = {logits.begin(), logits.end()},
                   .num_interrupted = 0});
}

void Verifier::on_forked(SeqId from, SeqId to) {
  const auto at = tracked_.find(from.value);
  if (at == tracked_.end()) return;
  Tracked copy = at->second;
  copy.wanted_hit.reset();
  tracked_.insert_or_assign(to.value, std::move(copy));
}

void Verifier::forget(SeqId id) {
  const auto at = tracked_.find(id.value);
  if (at == tracked_.end()) return;
  if (at->second.wanted_hit) ++counts_.skipped;  // its request ended before its prompt did
  tracked_.erase(at);
}

bool Verifier::run_idle(const StepTime& step_time) {
  while (!begin_job()) {
    if (jobs_.empty()) return false;
    skip_job();  // nobody else holds blocks, and there is no room for it
  }
  run_chunk(chunk_end(step_time));
  return true;
}

bool Verifier::run_busy(double compute_seconds, const StepTime& step_time) {
  const double budget = options_.verify_busy_share * compute_seconds - counts_.busy_seconds;
  if (budget < kMaxChunkSeconds || !begin_job()) return false;
  const double before = counts_.seconds;
  run_chunk(chunk_end(step_time));
  counts_.busy_seconds += counts_.seconds - before;
  return true;
}

// Makes the first job active. False: there is none, or no room for it now.
bool Verifier::begin_job() {
  while (!is_active_ && !jobs_.empty()) {
    const VerifyJob& job = jobs_.front();
    const std::optional<ComputePath> path = book_.find(job.hit_prefix);
    const bool is_there = path && *path == job.path.first(job.hit);
    const Memory memory = is_there ? take_memory(job) : Memory::kGone;
    if (memory == Memory::kNoRoom) return false;
    is_active_ = memory == Memory::kTaken;
    if (!is_active_) skip_job();
  }
  return is_active_;
}

Verifier::Memory Verifier::take_memory(const VerifyJob& job) {
  const auto length = static_cast<int64_t>(job.tokens.size());
  const HybridCacheStats stats = cache_.stats();
  const int64_t needed = cache_.blocks_needed(length, 0) + cache_.blocks_needed(job.hit + 1, job.hit);
  if (needed > std::max(stats.free_blocks, (stats.free_blocks + stats.evictable_blocks) / 4)) return Memory::kNoRoom;
  const int64_t before = cache_.blocks_available();
  // One token more than the hit: then no hit can be longer.
  const auto stem = std::span(job.tokens).first(static_cast<size_t>(job.hit + 1));
  const std::optional<PrefixMatch> match = cache_.admit(kReader, stem, job.scope, 1);
  if (!match) return Memory::kNoRoom;
  const HybridCacheStats after = cache_.stats();
  counts_.query_tokens += after.query_tokens - stats.query_tokens;
  counts_.hit_tokens += after.hit_tokens - stats.hit_tokens;
  const bool is_there = match->hit_tokens == job.hit;
  if (!is_there || !cache_.prepare_step(kReader, 1) || !cache_.admit(kScratch, job.tokens, job.scope, length, false)) {
    cache_.release(kReader);
    return is_there ? Memory::kNoRoom : Memory::kGone;
  }
  lent_blocks_ = std::max<int64_t>(before - cache_.blocks_available(), 0);
  return Memory::kTaken;
}

void Verifier::leave_memory() {
  if (!is_active_) return;
  cache_.release(kScratch);
  cache_.release(kReader);
  is_active_ = false;
  lent_blocks_ = 0;
}

void Verifier::end_job() {
  leave_memory();
  jobs_.pop_front();
}

void Verifier::skip_job() {
  ++counts_.skipped;
  end_job();
}

bool Verifier::give_back() {
  if (!is_active_) return false;
  leave_memory();
  if (++jobs_.front().num_interrupted >= kMaxAttempts) skip_job();
  return true;
}

// The largest chunk on the grid that the path and the time of a chunk allow.
int64_t Verifier::chunk_end(const StepTime& step_time) const {
  const VerifyJob& job = jobs_.front();
  const int64_t begin = cache_.length(kScratch);
  int64_t end = std::min(job.path.end_of_span(begin), static_cast<int64_t>(job.tokens.size()));
  if (begin < job.hit) end = std::min(end, job.hit);
  int64_t rows = kMaxChunk;
  const auto seconds = [&](int64_t count) {
    return step_time.predict({.rows = static_cast<double>(count),
                              .row_context = static_cast<double>(count) * static_cast<double>(begin + count)});
  };
  while (rows > kGrid && seconds(rows) > kMaxChunkSeconds) rows /= 2;
  return std::min(end, begin + rows);
}

void Verifier::run_chunk(int64_t end) {
  const Clock::time_point start = Clock::now();
  const VerifyJob& job = jobs_.front();
  const int64_t begin = cache_.length(kScratch);
  const auto tokens = std::span(job.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  const bool is_last = end == static_cast<int64_t>(job.tokens.size());
  if (!cache_.prepare_step(kScratch, end - begin)) return skip_job();
  plan_.tokens.assign(tokens.begin(), tokens.end());
  plan_.sequences.resize(1);
  plan_.sequences[0] = {.cache = 0,
                        .num_tokens = end - begin,
                        .num_computed_tokens = begin,
                        .mode = job.path.mode_at(begin),
                        .logits = is_last ? LogitsWanted::kLast : LogitsWanted::kNone,
                        .captures = {}};
  const std::array<SequenceCacheView, 1> views = {cache_.view(kScratch)};
  const Result<MatrixView<float>> logits = model_.model().forward(model_.exec(), plan_, views);
  if (!logits.is_ok()) {
    cache_.abort_step(kScratch);
    return skip_job();
  }
  std::optional<CacheMismatch> mismatch = compare_chunk(begin, end, views[0]);
  if (!mismatch && is_last) {
    const std::span<const float> row(logits.value().row(0), job.logits.size());
    mismatch = compare_logits(row, job.logits, static_cast<int64_t>(views[0].layers.size()), end - 1);
  }
  const bool is_committed = cache_.commit_step(kScratch, tokens).is_ok();
  counts_.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (mismatch) return fail(*mismatch);
  if (!is_committed) return skip_job();
  if (!is_last) return;
  ++counts_.done;
  end_job();
}

std::optional<CacheMismatch> Verifier::compare_chunk(int64_t begin, int64_t end, const SequenceCacheView& scratch) {
  const int64_t hit = jobs_.front().hit;
  if (begin >= hit) return std::nullopt;
  const SequenceCacheView reader = cache_.view(kReader);
  auto mismatch = compare_latents(cache_.layout(), scratch, reader, begin, end);
  if (!mismatch && end == hit) mismatch = compare_states(cache_.layout(), scratch, reader, hit);
  return mismatch;
}

void Verifier::fail(const CacheMismatch& mismatch) {
  ++counts_.done;
  ++counts_.failed;
  const VerifyJob job = jobs_.front();
  end_job();
  // A state is kept by the unit that ends where it was taken.
  const bool is_state = mismatch.what == "kda_state" || mismatch.what == "conv_history";
  const int64_t first_wrong = mismatch.what == "mla_latent" ? mismatch.position
                              : is_state                    ? mismatch.position - 1
                                                            : job.hit;
  cache_.quarantine(job.tokens, job.scope, first_wrong);

  std::string problem = cat("cache verification failed: request \"", job.request_id, "\", ", mismatch.what,
                            " of layer ", mismatch.layer, " at token ", mismatch.position, ", element ",
                            mismatch.element, ": expected ", mismatch.expected, ", found ", mismatch.found);
  if (!options_.verify_dump_dir.empty()) {
    const std::string path = cat(options_.verify_dump_dir, "/verify-", counts_.failed, ".json");
    const Status written = write_file_atomic(path, verify_report_json(job, mismatch, model_, options_));
    problem += written.is_ok() ? cat("; reproducer: ", path) : cat("; no reproducer: ", written.message());
  }
  on_failure_(problem);
}

}  // namespace tandem
