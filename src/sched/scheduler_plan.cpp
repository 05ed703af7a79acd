// sched/scheduler_plan.cpp: one step: decodes, then those that come back, then prefills and newcomers.
#include <algorithm>

#include "base/check.h"
#include "sched/chunk.h"
#include "sched/scheduler_impl.h"

namespace tandem {

const SchedulerStep& Scheduler::plan(double now) {
  static_cast<void>(now);  // a rank holds for all time, see sequence.h
  Impl& m = *impl_;
  m.begin_plan();
  m.plan_decodes();
  m.resume_swapped();
  m.plan_prefills();
  m.step.predicted_seconds = m.num_rows > 0 ? m.step_time.predict(m.work) : 0;
  m.is_in_flight = !m.step.rows.empty();
  return m.step;
}

void Scheduler::Impl::begin_plan() {
  TANDEM_CHECK(!is_in_flight || step.rows.empty(), "a step with rows is settled before the next is planned");
  ++num_plans;
  const int64_t num_running = static_cast<int64_t>(running.size());
  const int64_t available = memory.blocks_available();
  const double total = static_cast<double>(std::max<int64_t>(memory.blocks_total(), 1));
  throttle.update({1 - static_cast<double>(available) / total, num_running,
                   queue.size() + static_cast<int64_t>(swapped.size()), !step.preempted.empty()});

  if (refusal && (num_running == 0 || num_running < refusal->running || available > refusal->blocks_available ||
                  num_plans - refusal->plan >= kRetryPlans)) {
    refusal.reset();
  }
  is_admitting = !refusal;
  is_prefill_blocked = false;

  step.rows.clear();
  step.predicted_seconds = 0;
  step.admitted.clear();
  step.resumed.clear();
  step.preempted.clear();
  work = {};
  num_rows = 0;
  has_decodes = false;
  has_prefills = false;
  for (Sequence* s : running) s->is_settled = s->num_uncomputed_tokens() == 0;
}

void Scheduler::Impl::schedule(Sequence& s, int64_t num_tokens) {
  const int64_t begin = s.num_computed_tokens;
  const bool is_decode = s.is_decode() || is_replay(s, begin);
  step.rows.push_back({s.id, is_decode ? StepMode::kDecode : StepMode::kPrefill, begin, num_tokens,
                       begin + num_tokens == s.num_tokens()});
  const StepTime::Work added = chunk_work(begin, begin + num_tokens);
  work.rows += added.rows;
  work.row_context += added.row_context;
  num_rows += num_tokens;
  (is_decode ? has_decodes : has_prefills) = true;
  s.is_settled = true;
}

// In rank order, so that whoever is preempted for room has no rows yet.
void Scheduler::Impl::plan_decodes() {
  for (size_t i = 0; i < running.size(); ++i) {
    if (running[i]->is_decode()) plan_decode(*running[i]);
  }
}

void Scheduler::Impl::plan_decode(Sequence& s) {
  while (!memory.prepare_step(s.id, 1)) {
    s.is_settled = true;
    if (running.size() == 1) return;  // what holds the blocks is not ours: wait
    Sequence* last = running.back();
    preempt(*last);
    is_admitting = false;
    if (last == &s) return;
  }
  schedule(s, 1);
}

// Room for `blocks` without touching the page that each running sequence may need next.
bool Scheduler::Impl::has_room_beside_running(int64_t blocks) const {
  const int64_t reserve = growth_blocks * static_cast<int64_t>(running.size());
  return running.empty() || blocks + reserve <= memory.blocks_available();
}

void Scheduler::Impl::resume_swapped() {
  while (is_admitting && !swapped.empty()) {
    Sequence& s = *swapped.front();
    const int64_t room = std::min(s.num_uncomputed_tokens(), options.chunk_grid);
    const int64_t blocks = memory.blocks_needed(s.num_computed_tokens + room, 0);
    if (static_cast<int64_t>(running.size()) >= throttle.limit() || !has_room_beside_running(blocks)) break;
    const SequenceMemory::SwapIn outcome = memory.swap_in(s.id, room);
    const bool has_no_room = outcome == SequenceMemory::SwapIn::kNoRoom;
    if (has_no_room && (!running.empty() || blocks > memory.blocks_available())) break;
    swapped.erase(swapped.begin());
    if (outcome == SequenceMemory::SwapIn::kDone) {
      step.resumed.push_back(s.id);
      start_running(s);
      // Its rows come last: nobody with rows in this step is preempted for them.
      s.is_settled = s.num_uncomputed_tokens() == 0;
      if (s.is_decode() && memory.prepare_step(s.id, 1)) schedule(s, 1);
      continue;
    }
    // Lost, or there are blocks enough and nobody else to wait for: from the start.
    memory.drop_swapped(s.id);
    start_waiting(s);
  }
  if (!swapped.empty()) is_admitting = false;
}

bool Scheduler::Impl::is_within_share(const Sequence& s) const {
  int64_t blocks = memory.blocks_needed(s.num_tokens(), s.expected_hit);
  bool is_first = true;
  for (const Sequence* other : running) {
    if (other->cost_class != s.cost_class) continue;
    is_first = false;
    blocks += memory.blocks_needed(other->num_tokens(), other->match.hit_tokens);
  }
  return is_first || budgets.is_within_share(*s.cost_class, blocks, memory.blocks_total());
}

bool Scheduler::Impl::waits_within_share() const {
  for (int64_t c = 0; c < budgets.size(); ++c) {
    if (const Sequence* first = queue.front(c); first != nullptr && is_within_share(*first)) return true;
  }
  return false;
}

// The next one to compute a chunk, running or waiting, of the class that is furthest behind its share; null: none.
Sequence* Scheduler::Impl::next_prefill() {
  const bool only_within_share = is_admitting && queue.size() > 0 && waits_within_share();
  Sequence* next = nullptr;
  const auto goes_before = [this](const Sequence& a, const Sequence& b) {
    const double a_time = budgets.virtual_time(*a.cost_class);
    const double b_time = budgets.virtual_time(*b.cost_class);
    return a_time != b_time ? a_time < b_time : ranks_before(a, b);
  };
  for (Sequence* s : running) {
    if (!s->is_settled && (next == nullptr || goes_before(*s, *next))) next = s;
  }
  for (int64_t c = 0; is_admitting && c < budgets.size(); ++c) {
    Sequence* s = queue.front(c);
    if (s == nullptr || (only_within_share && !is_within_share(*s))) continue;
    if (next == nullptr || goes_before(*s, *next)) next = s;
  }
  return next;
}

void Scheduler::Impl::plan_prefills() {
  budgets.start_step();
  while (num_rows < options.token_budget) {
    Sequence* s = next_prefill();
    if (s == nullptr) {
      // Prefills fill the pool and none can go on: the last in rank gives way.
      if (!is_prefill_blocked || !step.rows.empty() || running.size() < 2) return;
      preempt(*running.back());
      is_admitting = false;
      for (Sequence* other : running) other->is_settled = other->num_uncomputed_tokens() == 0;
      continue;
    }
    if (s->phase == SequencePhase::kRunning || admit(*s)) {
      plan_prefill(*s);
    } else {
      is_admitting = false;  // who comes first in line is not overtaken by those who need less
    }
  }
}

bool Scheduler::Impl::is_replay(const Sequence& s, int64_t begin) const {
  return options.replay_generated && begin >= s.prompt_tokens;
}

std::span<const TokenId> Scheduler::Impl::prefill_tokens(const Sequence& s) const {
  const std::span<const TokenId> known(s.tokens);
  return options.replay_generated ? known.first(static_cast<size_t>(s.prompt_tokens)) : known;
}

// Where a chunk from `begin` on ends at the latest: a prompt's last chunk leaves what was generated to the next one.
int64_t Scheduler::Impl::known_for_chunk(const Sequence& s, int64_t begin) const {
  return is_replay(s, begin) ? s.num_tokens() : static_cast<int64_t>(prefill_tokens(s).size());
}

// `begin` when it cannot have rows in this step.
int64_t Scheduler::Impl::end_of_next_chunk(const Sequence& s, int64_t begin) const {
  const int64_t rows_left = options.token_budget - num_rows;
  const int64_t known = known_for_chunk(s, begin);
  if (!has_decodes || options.step_seconds <= 0) return chunk_end(begin, known, rows_left, options.chunk_grid);
  int64_t rows = rows_within(step_time, work, begin, rows_left, options.step_seconds);
  if (!has_prefills) rows = std::max(rows, std::min(rows_left, options.chunk_grid));
  return chunk_end(begin, known, rows, options.chunk_grid);
}

bool Scheduler::Impl::admit(Sequence& s) {
  if (static_cast<int64_t>(running.size()) >= throttle.limit()) return false;
  const int64_t hit = std::min(s.expected_hit, s.num_tokens() - 1);
  const int64_t end = end_of_next_chunk(s, hit);
  if (end <= hit || !has_room_beside_running(memory.blocks_needed(end, hit))) return false;
  const std::span<const TokenId> prompt = prefill_tokens(s);
  auto match = memory.admit(s.id, prompt, s.scope, end - hit, s.share_prefix);
  if (!match && running.empty() && s.share_prefix) {
    // Alone, and the hit it stands on together with its own copy is more than the pool holds: without the hit it fits.
    match = memory.admit(s.id, prompt, s.scope, std::min(end - hit, options.chunk_grid), false);
  }
  if (!match) {
    refusal = Refusal{num_plans, memory.blocks_available(), static_cast<int64_t>(running.size())};
    return false;
  }
  queue.remove(&s);
  s.match = *std::move(match);
  s.num_computed_tokens = s.match.hit_tokens;
  s.is_settled = false;
  step.admitted.push_back(s.id);
  start_running(s);
  return true;
}

void Scheduler::Impl::plan_prefill(Sequence& s) {
  s.is_settled = true;
  const int64_t begin = s.num_computed_tokens;
  int64_t end = end_of_next_chunk(s, begin);
  if (end <= begin) return;
  while (!memory.prepare_step(s.id, end - begin)) {
    // Fewer rows may have room: half of them, or one grid step.
    const int64_t fewer = std::max((end - begin) / 2, std::min(options.chunk_grid, end - begin - 1));
    end = chunk_end(begin, known_for_chunk(s, begin), fewer, options.chunk_grid);
    if (end <= begin) {
      is_prefill_blocked = true;
      return;
    }
  }
  budgets.charge(*s.cost_class, end - begin);
  schedule(s, end - begin);
}

}  // namespace tandem
