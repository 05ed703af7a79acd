#include "engine/memory_budget.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"

namespace tandem {
namespace {

std::string megabytes(int64_t bytes) {
  const int64_t tenths = (bytes + 50'000) / 100'000;
  return cat(tenths / 10, ".", tenths % 10, " MB");
}

int64_t without_slots(const MemoryNeeds& needs, bool trunk_streamed) {
  return needs.process + (trunk_streamed ? needs.trunk_streamed : needs.trunk) + needs.scratch + needs.caches;
}

Status too_small(const MemoryNeeds& needs, std::string_view what, int64_t budget, int64_t least) {
  return Status::exhausted(cat(what, " is ", megabytes(budget), ", and at least ", megabytes(least),
                               " are needed: ", megabytes(needs.trunk_streamed),
                               " for the trunk, read layer by layer, ", megabytes(needs.least_slots * needs.slot),
                               " for the ", needs.least_slots, " experts of one token in one layer, ",
                               megabytes(needs.scratch), " for a step's scratch, ", megabytes(needs.caches),
                               " for caches, ", megabytes(needs.process), " for the process"));
}

}  // namespace

Result<MemoryDecision> decide_memory(const MemoryNeeds& needs, std::optional<int64_t> asked, int64_t available) {
  const int64_t budget = asked.value_or(available);
  MemoryDecision decision;
  if (budget == 0 || without_slots(needs, false) + needs.embedding + needs.experts <= budget) return decision;
  const int64_t least = needs.least_slots * needs.slot;
  decision.streamed = true;
  decision.budget = budget;
  // Every step reads all of the trunk: it stays as long as one token's experts have room beside it.
  decision.trunk_streamed = needs.slot == 0 || without_slots(needs, false) + least > budget;
  const int64_t fixed = without_slots(needs, decision.trunk_streamed);
  if (fixed + least > budget) {
    return too_small(needs, asked ? "--ram" : "the memory available here", budget, fixed + least);
  }
  if (needs.slot > 0) decision.num_slots = std::min((budget - fixed) / needs.slot, needs.num_experts);
  return decision;
}

std::string describe(const MemoryDecision& decision, const MemoryNeeds& needs) {
  if (!decision.streamed) return cat("all weights resident: ", megabytes(needs.trunk + needs.experts));
  std::string text = cat("within ", megabytes(decision.budget), ": ");
  text += decision.trunk_streamed
              ? cat("trunk streamed from disk layer by layer (", megabytes(needs.trunk_streamed), " stay)")
              : cat("trunk resident (", megabytes(needs.trunk), ")");
  if (needs.slot > 0) {
    const int64_t tenths = 1000 * decision.num_slots / std::max<int64_t>(needs.num_experts, 1);
    text += cat(", routed experts streamed from disk, ", decision.num_slots, " of ", needs.num_experts, " in memory (",
                tenths / 10, ".", tenths % 10, "%, ", megabytes(decision.num_slots * needs.slot), ")");
  }
  return cat(text, "; scratch ", megabytes(needs.scratch), ", caches ", megabytes(needs.caches), ", process ",
             megabytes(needs.process));
}

Status MemoryKeeper::before_step(int64_t resident) {
  // The trunk's pages are not there yet: what is resident says nothing about what will be.
  if (!std::exchange(trunk_is_resident_, true)) return Status::ok();
  const int64_t reserve = std::max<int64_t>(reserve_ - static_cast<int64_t>(arena_.peak_bytes()), 0);
  const auto slot = static_cast<int64_t>(store_.slot_bytes());
  const int64_t committed = resident + reserve + store_.num_untouched_slots() * slot;
  // Two slots of distance before any are taken back: or they would come and go with every page.
  const int64_t excess = committed - budget_;
  if (excess <= 0 && excess > -3 * slot) return Status::ok();
  const int64_t change = excess > 0 ? (excess + slot - 1) / slot : excess / slot + 2;
  const int64_t wanted = store_.num_slots() - change;
  const int64_t have = store_.resize(wanted);
  if (excess <= 0 || have <= wanted) return Status::ok();
  return Status::exhausted(cat("the memory budget of ", megabytes(budget_), " is used up: ", megabytes(resident),
                               " are resident with ", have, " experts in memory, the fewest that a step needs"));
}

}  // namespace tandem
