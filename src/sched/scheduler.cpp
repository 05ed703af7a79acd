#include "sched/scheduler.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace tandem {
namespace {

constexpr int64_t kLongestSequence = int64_t{1} << 40;  // tokens; where the search for a limit ends
constexpr int64_t kMostReservedTokens = int64_t{1} << 20;

SchedulerOptions make_consistent(SchedulerOptions o) {
  o.chunk_grid = std::max<int64_t>(o.chunk_grid, 1);
  o.token_budget = std::max(o.token_budget, o.chunk_grid + 1);
  o.max_running = std::clamp<int64_t>(o.max_running, 1, o.token_budget - o.chunk_grid);
  o.max_waiting = std::max<int64_t>(o.max_waiting, 1);
  if (!(o.aging_seconds >= 0) || !std::isfinite(o.aging_seconds)) o.aging_seconds = 0;
  return o;
}

// The largest length in [1, kLongestSequence] whose blocks are at most `blocks`; 0 when one token's are more.
int64_t longest_within(const SequenceMemory& memory, int64_t blocks) {
  int64_t fits = 0;
  int64_t too_long = kLongestSequence + 1;
  while (too_long - fits > 1) {
    const int64_t tokens = fits + (too_long - fits) / 2;
    (memory.blocks_needed(tokens, 0) <= blocks ? fits : too_long) = tokens;
  }
  return fits;
}

int64_t blocks_of_growth(const SequenceMemory& memory) {
  const int64_t first = memory.blocks_needed(1, 0);
  const int64_t page_end = longest_within(memory, first);
  return page_end == kLongestSequence ? 0 : memory.blocks_needed(page_end + 1, 0) - first;
}

void insert_by_rank(std::vector<Sequence*>& list, Sequence* s) {
  list.insert(std::lower_bound(list.begin(), list.end(), s,
                               [](const Sequence* a, const Sequence* b) { return ranks_before(*a, *b); }),
              s);
}

void erase_from(std::vector<Sequence*>& list, const Sequence* s) {
  const auto place = std::find(list.begin(), list.end(), s);
  TANDEM_CHECK(place != list.end(), "a sequence is in the list of its phase");
  list.erase(place);
}

}  // namespace

std::vector<CostClass> default_cost_classes() { return {{2048, 0.4}, {32768, 0.3}, {262144, 0.2}, {INT64_MAX, 0.1}}; }

Scheduler::Impl::Impl(const SchedulerOptions& wanted, SequenceMemory& sequence_memory)
    : options(make_consistent(wanted)),
      memory(sequence_memory),
      budgets(wanted.classes),
      throttle(options.high_utilisation, options.low_utilisation, options.max_running),
      growth_blocks(blocks_of_growth(memory)),
      max_sequence_tokens(longest_within(memory, memory.blocks_total())),
      queue(budgets.size(), options.max_waiting + options.max_running) {
  running.reserve(options.max_running);
  swapped.reserve(options.max_waiting + options.max_running);
  step.rows.reserve(options.max_running);
  step.admitted.reserve(options.max_running);
  step.resumed.reserve(options.max_running);
  step.preempted.reserve(options.max_running);
}

Sequence* Scheduler::Impl::find(SeqId id) const {
  const auto place = sequences.find(id.value);
  return place == sequences.end() ? nullptr : place->second.get();
}

Sequence& Scheduler::Impl::at(SeqId id) const {
  Sequence* s = find(id);
  TANDEM_CHECK(s != nullptr, cat("sequence ", id.value, " is not known to the scheduler"));
  return *s;
}

int64_t Scheduler::Impl::hit_tokens(const Sequence& s) const {
  return s.share_prefix ? memory.match(prefill_tokens(s), s.scope).hit_tokens : 0;
}

void Scheduler::Impl::start_waiting(Sequence& s) {
  s.phase = SequencePhase::kWaiting;
  s.num_computed_tokens = 0;
  s.expected_hit = hit_tokens(s);
  // The class is that of what a request has to compute first; it stays when the request has to wait once more.
  if (!s.cost_class) s.cost_class = budgets.classify(s.num_tokens() - s.expected_hit);
  queue.push(&s);
}

void Scheduler::Impl::start_running(Sequence& s) {
  s.phase = SequencePhase::kRunning;
  insert_by_rank(running, &s);
}

void Scheduler::Impl::stop_running(Sequence& s) { erase_from(running, &s); }

void Scheduler::Impl::recompute(Sequence& s) {
  stop_running(s);
  memory.release(s.id);
  start_waiting(s);
}

bool Scheduler::Impl::swap_is_cheaper(const Sequence& s) const {
  if (s.num_computed_tokens == 0 || !(options.swap_bytes_per_second > 0)) return false;
  const double recompute_seconds =
      step_time.predict_prefill(hit_tokens(s), s.num_computed_tokens, options.token_budget);
  return static_cast<double>(memory.swap_bytes(s.id)) / options.swap_bytes_per_second < recompute_seconds;
}

void Scheduler::Impl::preempt(Sequence& s) {
  ++num_preemptions;
  step.preempted.push_back(s.id);
  if (swap_is_cheaper(s) && memory.swap_out(s.id)) {
    stop_running(s);
    s.phase = SequencePhase::kSwapped;
    insert_by_rank(swapped, &s);
    return;
  }
  recompute(s);
}

Scheduler::Scheduler(const SchedulerOptions& options, SequenceMemory& memory)
    : impl_(std::make_unique<Impl>(options, memory)) {}

Scheduler::~Scheduler() = default;

Status Scheduler::add(NewSequence sequence) {
  Impl& m = *impl_;
  TANDEM_CHECK(m.find(sequence.id) == nullptr, cat("sequence ", sequence.id.value, " is added twice"));
  const int64_t prompt = static_cast<int64_t>(sequence.tokens.size());
  const int64_t new_tokens = std::max<int64_t>(sequence.max_new_tokens, 0);
  if (prompt == 0) return Status::invalid("request: its prompt needs at least one token, it has none");
  if (prompt > m.max_sequence_tokens || new_tokens > m.max_sequence_tokens - prompt) {
    return Status::invalid(cat("request: ", prompt, " prompt tokens and up to ", new_tokens,
                               " new ones need more than the ", m.memory.blocks_total(),
                               " blocks of the cache, which hold a sequence of ", m.max_sequence_tokens, " tokens"));
  }
  if (m.queue.size() >= m.options.max_waiting) {
    return Status::exhausted(
        cat("request queue: ", m.queue.size(), " requests wait, at most ", m.options.max_waiting, " may"));
  }
  auto s = std::make_unique<Sequence>();
  s->id = sequence.id;
  s->tokens = std::move(sequence.tokens);
  s->prompt_tokens = prompt;
  s->tokens.reserve(prompt + std::min(new_tokens, kMostReservedTokens));
  s->scope = std::move(sequence.scope);
  s->share_prefix = sequence.share_prefix;
  s->max_new_tokens = new_tokens;
  s->priority = sequence.priority;
  s->arrived = sequence.arrived;
  s->rank = sequence.priority * m.options.aging_seconds + sequence.arrived;
  s->number = m.num_added++;
  m.start_waiting(*s);
  m.sequences.emplace(s->id.value, std::move(s));
  return Status::ok();
}

int64_t Scheduler::max_sequence_tokens() const { return impl_->max_sequence_tokens; }

void Scheduler::remove(SeqId id) {
  Impl& m = *impl_;
  Sequence* s = m.find(id);
  if (s == nullptr) return;
  switch (s->phase) {
    case SequencePhase::kWaiting: m.queue.remove(s); break;
    case SequencePhase::kRunning:
      m.stop_running(*s);
      m.memory.release(id);
      std::erase_if(m.step.rows, [id](const ScheduledRows& rows) { return rows.id == id; });
      break;
    case SequencePhase::kSwapped:
      erase_from(m.swapped, s);
      m.memory.drop_swapped(id);
      break;
  }
  m.sequences.erase(id.value);
}

bool Scheduler::fork(SeqId from, SeqId to) {
  Impl& m = *impl_;
  TANDEM_CHECK(m.find(to) == nullptr, cat("sequence ", to.value, " is added twice"));
  const Sequence& source = m.at(from);
  const bool is_planned = m.is_in_flight && std::any_of(m.step.rows.begin(), m.step.rows.end(),
                                                        [from](const ScheduledRows& r) { return r.id == from; });
  auto copy = std::make_unique<Sequence>(source);
  Sequence& s = *copy;
  s.id = to;
  s.number = m.num_added++;
  s.tokens.reserve(source.tokens.capacity());
  m.sequences.emplace(to.value, std::move(copy));
  const bool is_there = source.phase == SequencePhase::kRunning && !is_planned && source.num_uncomputed_tokens() <= 1;
  const bool has_place = static_cast<int64_t>(m.running.size()) < m.options.max_running;
  if (is_there && has_place && m.memory.fork(from, to)) {
    m.start_running(s);
    return true;
  }
  m.start_waiting(s);
  return false;
}

bool Scheduler::has_work() const {
  const Impl& m = *impl_;
  return m.queue.size() > 0 || !m.swapped.empty() ||
         std::any_of(m.running.begin(), m.running.end(),
                     [](const Sequence* s) { return s->num_uncomputed_tokens() > 0; });
}

void Scheduler::step_done(double seconds) {
  Impl& m = *impl_;
  TANDEM_CHECK(m.is_in_flight || m.step.rows.empty(), "a step is settled once");
  for (const ScheduledRows& rows : m.step.rows) m.at(rows.id).num_computed_tokens += rows.num_tokens;
  m.is_in_flight = false;
  m.step_time.observe(m.work, seconds);
  m.work = {};
}

void Scheduler::step_failed() {
  Impl& m = *impl_;
  TANDEM_CHECK(m.is_in_flight || m.step.rows.empty(), "a step is settled once");
  for (const ScheduledRows& rows : m.step.rows) m.recompute(m.at(rows.id));
  m.is_in_flight = false;
}

void Scheduler::append_token(SeqId id, TokenId token) { impl_->at(id).tokens.push_back(token); }

std::span<const TokenId> Scheduler::tokens(SeqId id) const { return impl_->at(id).tokens; }

int64_t Scheduler::num_computed_tokens(SeqId id) const { return impl_->at(id).num_computed_tokens; }

const PrefixMatch& Scheduler::admitted_match(SeqId id) const { return impl_->at(id).match; }

const StepTime& Scheduler::step_time() const { return impl_->step_time; }

Scheduler::Counts Scheduler::counts() const {
  const Impl& m = *impl_;
  return {static_cast<int64_t>(m.running.size()), m.queue.size(), static_cast<int64_t>(m.swapped.size()),
          m.num_preemptions, m.throttle.limit()};
}

}  // namespace tandem
