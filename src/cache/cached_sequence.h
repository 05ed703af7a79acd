// cache/cached_sequence.h: one sequence of the hybrid cache: its tokens, its blocks, its place in the prefix index, and
// the step it is in. Plain data with the arithmetic that needs nothing else. Threading: engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/block_pool.h"
#include "cache/hybrid_cache.h"
#include "cache/layer_cache.h"
#include "cache/prefix_index.h"

namespace tandem {

// A place where a prompt should leave a KDA state behind.
struct WantedCheckpoint {
  int64_t position = 0;  // a multiple of the hash unit
  CheckpointReason reason = CheckpointReason::kPromptEnd;
};

struct WantedOptions {
  int64_t hash_unit = 0;
  int64_t interval = 0;
  std::optional<TokenId> message_end;
};

// Of a prompt that resumes at `hit`, ascending, each position once with the reason that is kept longest: the prompt's
// end (strict: one token short of it at most; inclusive when it ends on a unit), the last two turns, the junction with
// other prompts (latents are there up to `latent_tokens`), and the interval. Source: systems.md §2.6.
std::vector<WantedCheckpoint> wanted_checkpoints(std::span<const TokenId> prompt, int64_t hit, int64_t latent_tokens,
                                                 const WantedOptions& options);

// A state that the step in flight writes on its way: blocks of every KDA group, and the view handed to the model.
struct CaptureSlot {
  int64_t num_tokens = 0;      // of the step's rows
  bool is_commit = false;      // the commit point of a window, which may become the running state
  bool is_checkpoint = false;  // on a unit's end
  bool is_rolling = false;     // recycled when a later one of the sequence is stored
  CheckpointReason reason = CheckpointReason::kTurn;
  std::vector<BlockId> blocks;
  std::vector<LayerCache> layers;
};

enum class StepPhase : uint8_t { kNone, kPrepared, kFailed };

struct CachedSequence {
  SeqId id;
  CacheScope scope;
  bool is_shared = false;       // takes part in the index
  bool is_refused = false;      // nothing more of it is shared: it was not finite, or was quarantined
  PrefixMatch match;            // of its admission
  std::vector<TokenId> tokens;  // the prompt, then what was committed behind it
  int64_t prompt_tokens = 0;
  int64_t committed = 0;

  std::vector<LayerCache> layers;                    // the running caches
  std::vector<std::vector<std::byte*>> page_tables;  // by layer; empty for KDA
  std::vector<BlockId> pages;                        // MLA blocks, in token order
  std::vector<BlockId> state;                        // KDA blocks, by group

  PrefixIndex::Node* root = nullptr;
  std::vector<PrefixIndex::Node*> nodes;  // by unit: of the whole prompt at first, of everything committed later
  int64_t announced_end = 0;              // units [published, announced_end) are announced
  int64_t published = 0;                  // units whose latents the index may name

  std::vector<WantedCheckpoint> wanted;  // those behind `committed`
  size_t next_wanted = 0;
  std::optional<CheckpointId> rolling;
  std::vector<CheckpointId> checkpoints;  // taken or resumed from, ascending; some may be gone

  StepPhase phase = StepPhase::kNone;
  int64_t step_tokens = 0;
  std::optional<int64_t> window_commit;
  std::vector<CaptureSlot> captures;    // ascending
  std::vector<PlannedCapture> planned;  // what the model is shown of them

  int64_t scheduled() const { return committed + (phase == StepPhase::kPrepared ? step_tokens : 0); }
};

}  // namespace tandem
