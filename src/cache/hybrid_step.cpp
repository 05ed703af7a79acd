// Steps: room and captures before, the proof that the model did what was planned after, and what becomes shared then.
#include <algorithm>

#include "base/cat.h"
#include "base/check.h"
#include "cache/hybrid_cache_impl.h"

namespace tandem {

// Blocks left alone by checkpoints, which can do without: one for every sequence whose next token needs a page.
int64_t HybridCache::Impl::growth_reserve() const {
  if (layout.num_mla_layers == 0) return 0;
  return std::count_if(sequences.begin(), sequences.end(), [&](const auto& entry) {
    const CachedSequence& s = *entry.second;
    return s.scheduled() >= static_cast<int64_t>(s.pages.size()) * layout.cache.page_tokens;
  });
}

bool HybridCache::Impl::prepare(CachedSequence& sequence, int64_t num_tokens, std::optional<int64_t> window_commit) {
  TANDEM_CHECK(num_tokens > 0, "a step has rows");
  TANDEM_CHECK(sequence.phase != StepPhase::kFailed, "a failed sequence can only be released");
  TANDEM_CHECK(!window_commit || (*window_commit > 0 && *window_commit <= num_tokens), "a commit point in the window");
  const int64_t end = sequence.committed + num_tokens;
  const bool has_commit_slot = window_commit && *window_commit < num_tokens && layout.num_kda_groups > 0;
  const int64_t new_pages = std::max<int64_t>(layout.pages(end) - static_cast<int64_t>(sequence.pages.size()), 0);
  cancel_plan(sequence);
  if (pool->num_available() < new_pages + (has_commit_slot ? layout.num_kda_groups : 0)) return false;
  for (int64_t p = 0; p < new_pages; ++p) add_page(sequence, take_block(BlockKind::kMla, 0));
  if (layout.num_mla_layers > 0) {
    const int64_t page = layout.cache.page_tokens;
    for (int64_t p = sequence.committed / page; p * page < end; ++p) {
      const int64_t rows = std::min(end - p * page, page);
      pool->mark_dirty(sequence.pages[static_cast<size_t>(p)], rows * layout.cache.latent_row_bytes());
    }
  }
  if (sequence.tokens.capacity() < static_cast<size_t>(end)) {
    // To a unit's end, and geometrically: no step inside a unit makes the vector grow.
    const int64_t wanted = std::max(end, 2 * static_cast<int64_t>(sequence.tokens.capacity()));
    sequence.tokens.reserve(static_cast<size_t>((wanted / layout.hash_unit + 1) * layout.hash_unit));
  }
  sequence.phase = StepPhase::kPrepared;
  sequence.step_tokens = num_tokens;
  if (window_commit) sequence.window_commit = window_commit;
  if (has_commit_slot) {
    CaptureSlot slot{.num_tokens = *window_commit, .is_commit = true, .blocks = {}, .layers = {}};
    take_state(slot.blocks);
    sequence.captures.push_back(std::move(slot));
  }
  plan_captures(sequence);
  return true;
}

// Adds a slot for every checkpoint wanted in the step, and for the last unit's end in it; shows all to the model.
void HybridCache::Impl::plan_captures(CachedSequence& sequence) {
  const int64_t begin = sequence.committed;
  const int64_t end = sequence.scheduled();
  const int64_t last_boundary = shared_end(sequence, end) / layout.hash_unit * layout.hash_unit;
  if (sequence.is_shared && !sequence.is_refused && layout.num_kda_groups > 0 && last_boundary > begin) {
    const auto plan = [&](int64_t position, CheckpointReason reason, bool is_rolling) {
      const auto unit = static_cast<size_t>(position / layout.hash_unit - 1);
      if (unit < sequence.nodes.size() && index.checkpoint_at(sequence.nodes[unit])) return;
      if (!sequence.captures.empty() && sequence.captures.front().num_tokens == position - begin) {
        sequence.captures.front().is_checkpoint = true;  // the window's commit point lies on it
        sequence.captures.front().is_rolling = is_rolling;
        sequence.captures.front().reason = reason;
        return;
      }
      if (pool->num_available() < layout.num_kda_groups + growth_reserve()) {
        ++counts.checkpoints_skipped;
        return;
      }
      CaptureSlot slot{.num_tokens = position - begin,
                       .is_checkpoint = true,
                       .is_rolling = is_rolling,
                       .reason = reason,
                       .blocks = {},
                       .layers = {}};
      take_state(slot.blocks);
      sequence.captures.push_back(std::move(slot));
    };
    bool has_last = false;
    for (size_t i = sequence.next_wanted; i < sequence.wanted.size() && sequence.wanted[i].position <= end; ++i) {
      plan(sequence.wanted[i].position, sequence.wanted[i].reason, false);
      has_last = sequence.wanted[i].position == last_boundary;
    }
    if (!has_last) {
      const bool is_prompt = last_boundary < sequence.prompt_tokens;
      plan(last_boundary, is_prompt ? CheckpointReason::kInterval : CheckpointReason::kTurn, true);
    }
  }
  std::sort(sequence.captures.begin(), sequence.captures.end(),
            [](const CaptureSlot& a, const CaptureSlot& b) { return a.num_tokens < b.num_tokens; });
  for (CaptureSlot& slot : sequence.captures) {
    make_layers(slot.layers);
    point_states(slot.layers, slot.blocks, 0);
    sequence.planned.push_back({.num_tokens = slot.num_tokens, .view = {slot.layers}});
  }
}

void HybridCache::Impl::cancel_plan(CachedSequence& sequence) {
  for (const CaptureSlot& slot : sequence.captures) drop_uses(slot.blocks);
  sequence.captures.clear();
  sequence.planned.clear();
  sequence.window_commit.reset();
  sequence.step_tokens = 0;
  if (sequence.phase == StepPhase::kPrepared) sequence.phase = StepPhase::kNone;
}

Status HybridCache::Impl::check_step(const CachedSequence& sequence) const {
  const int64_t end = sequence.scheduled();
  const auto check_state = [&](const LayerCache& layer, size_t l, std::span<const BlockId> blocks, int64_t position,
                               std::string_view what) -> Status {
    const auto* state = std::get_if<KdaState>(&layer);
    if (state == nullptr) return Status::ok();
    const uint64_t version = pool->meta(blocks[static_cast<size_t>(layout.layers[l].group)]).version + 1;
    if (state->position == position && state->state_version == version) return Status::ok();
    return Status::failed_precondition(cat("sequence ", sequence.id.value, ", ", what, " of layer ", l, ": at ",
                                           state->position, " tokens and version ", state->state_version,
                                           " after the step, expected ", position, " and version ", version));
  };
  for (size_t l = 0; l < sequence.layers.size(); ++l) {
    TANDEM_RETURN_IF_ERROR(check_state(sequence.layers[l], l, sequence.state, end, "state"));
    const auto* latent = std::get_if<MlaLatent>(&sequence.layers[l]);
    if (latent != nullptr && latent->length != end) {
      return Status::failed_precondition(cat("sequence ", sequence.id.value, ": layer ", l, " holds ", latent->length,
                                             " latents after the step, expected ", end));
    }
    for (const CaptureSlot& slot : sequence.captures) {
      const int64_t position = sequence.committed + slot.num_tokens;
      TANDEM_RETURN_IF_ERROR(check_state(slot.layers[l], l, slot.blocks, position, "capture"));
    }
  }
  return Status::ok();
}

Status HybridCache::Impl::check_tokens(const CachedSequence& sequence, std::span<const TokenId> tokens) const {
  if (static_cast<int64_t>(tokens.size()) != sequence.step_tokens) {
    return Status::failed_precondition(cat("sequence ", sequence.id.value, ": ", tokens.size(),
                                           " tokens committed of a step of ", sequence.step_tokens));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t at = static_cast<size_t>(sequence.committed) + i;
    if (at >= sequence.tokens.size()) break;
    if (tokens[i] != sequence.tokens[at]) {
      return Status::failed_precondition(cat("sequence ", sequence.id.value, ": token ", at, " of its prompt is ",
                                             sequence.tokens[at].value, ", the step computed ", tokens[i].value));
    }
  }
  return Status::ok();
}

Status HybridCache::Impl::commit(CachedSequence& sequence, std::span<const TokenId> tokens, int64_t accepted) {
  TANDEM_CHECK(sequence.phase == StepPhase::kPrepared, "a step is prepared before it is committed");
  Status status = check_tokens(sequence, tokens);
  if (status.is_ok()) status = check_step(sequence);
  if (!status.is_ok()) {
    cancel_plan(sequence);
    sequence.phase = StepPhase::kFailed;
    return status;
  }
  const int64_t before = sequence.committed;
  for (int64_t i = 0; i < accepted; ++i) {
    if (before + i >= static_cast<int64_t>(sequence.tokens.size())) {
      sequence.tokens.push_back(tokens[static_cast<size_t>(i)]);
    }
  }
  // The model has advanced what it was shown: the blocks' own record follows.
  for (const BlockId block : sequence.state) pool->set_version(block, pool->meta(block).version + 1);
  for (const CaptureSlot& slot : sequence.captures) {
    for (const BlockId block : slot.blocks) {
      pool->set_version(block, pool->meta(block).version + 1);
      pool->set_valid_tokens(block, before + slot.num_tokens);
    }
  }
  if (accepted < sequence.step_tokens) keep_window(sequence, accepted);
  const int64_t end = before + accepted;
  set_length(sequence, end);
  for (const BlockId block : sequence.state) pool->set_valid_tokens(block, end);
  if (layout.num_mla_layers > 0) {
    const int64_t page = layout.cache.page_tokens;
    for (int64_t p = before / page; p * page < end; ++p) {
      pool->set_valid_tokens(sequence.pages[static_cast<size_t>(p)], std::min(end - p * page, page));
    }
  }
  if (end / layout.hash_unit > before / layout.hash_unit) {
    publish(sequence);
    store_captures(sequence, before, accepted);
  }
  cancel_plan(sequence);
  return Status::ok();
}

// The commit capture becomes the running state, and the rejected rows are gone.
void HybridCache::Impl::keep_window(CachedSequence& sequence, int64_t accepted) {
  const int64_t length = sequence.committed + accepted;
  for (CaptureSlot& slot : sequence.captures) {
    if (!slot.is_commit) continue;
    std::swap(slot.blocks, sequence.state);
    point_states(sequence.layers, sequence.state, length);
    if (slot.is_checkpoint) {
      copy_state(sequence.state, slot.blocks);  // it serves both: the checkpoint gets a copy
    }
  }
  if (!options.poison || layout.num_mla_layers == 0) return;
  const int64_t page = layout.cache.page_tokens;
  const int64_t end = sequence.scheduled();
  for (int64_t p = length / page; p * page < end; ++p) {
    const int64_t first = std::max(length - p * page, int64_t{0});
    const int64_t row_bytes = layout.cache.latent_row_bytes();
    pool->scrub(sequence.pages[static_cast<size_t>(p)], first * row_bytes, std::min(end - p * page, page) * row_bytes);
  }
}

void HybridCache::Impl::store_captures(CachedSequence& sequence, int64_t before, int64_t accepted) {
  for (const CaptureSlot& slot : sequence.captures) {
    if (slot.is_checkpoint && slot.num_tokens <= accepted) store_checkpoint(sequence, slot, before + slot.num_tokens);
  }
  while (sequence.next_wanted < sequence.wanted.size() &&
         sequence.wanted[sequence.next_wanted].position <= sequence.committed) {
    ++sequence.next_wanted;
  }
}

}  // namespace tandem
