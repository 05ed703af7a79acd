// cache/prefix_index.h: which prefixes were computed and where their latents and states lie: a tree of hash units.
//
//   A node is one unit of `hash_unit` tokens behind its parent, found by a chained 128-bit hash (h_i = H(h_{i−1},
//   tokens of unit i); h_0 = H(identity, salt)) and confirmed by its parent and its tokens, which are kept: a collision
//   costs time, never a wrong hit. A node may hold latents (one or more blocks whose rows of this unit are written; any
//   block that holds a unit holds the earlier rows of its page too) and a checkpoint (a KDA state of every group after
//   the unit's last token). A node whose latents went stays for a while as a ghost, so that a miss can be explained;
//   ghosts are bounded and the oldest go first.
//
//   Law     latents are downward closed: a node with latents has a parent with latents (or is a first unit), and a
//           checkpoint needs the latents of its unit. Removing a block therefore may orphan deeper blocks and
//           checkpoints: they are reported, for the owner to free.
//   Privacy What a PrefixMatch tells beyond the hit itself comes only from units credited to the asking owner (it was
//           served them: computed or hit) or announced by it. Another owner's units, under the same salt or not, are
//           as if never seen: no reason, length, checkpoint or expected token comes from them.
//   The index owns no block and no state: it names them. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cache/prefix_hash.h"
#include "cache/prefix_match.h"

namespace tandem {

enum class CheckpointReason { kPromptEnd, kPromptEndInclusive, kTurn, kJunction, kInterval };
std::string_view checkpoint_reason_name(CheckpointReason reason);  // "prompt_end", …

struct PrefixIndexOptions {
  int64_t hash_unit = 0;
  int64_t page_tokens = 0;  // a multiple of hash_unit
  bool has_kda = true;      // false: no states exist, every matched unit can be resumed from
  bool has_mla = true;      // false: no latents exist, units are matched by their checkpoints alone
  std::string identity;
  int64_t max_ghosts = 65536;
  int64_t checkpoints_per_chain = 4;
};

// What stopped being reachable, each once, the block or checkpoint that was asked for included when it was known: the
// owner takes their keys away, and frees what has no user.
struct IndexLoss {
  std::vector<BlockId> blocks;            // no key of theirs is left
  std::vector<CheckpointId> checkpoints;  // no longer known to the index
  bool empty() const { return blocks.empty() && checkpoints.empty(); }
};

struct PrefixLookup {
  PrefixMatch match;
  std::vector<BlockId> pages;  // page p of [0, hit): a block that holds its rows up to the page's end or the hit
  std::optional<CheckpointId> checkpoint;  // at the hit; none when the hit is 0 or there are no KDA layers
  // Latents present in whole units, whoever wrote them: where a junction is worth a checkpoint. For the engine; the
  // match's matched_tokens is what its owner may hear.
  int64_t latent_tokens = 0;
};

inline constexpr int64_t kMaxOwnersPerUnit = 64;

class PrefixIndex {
 public:
  // A place in the tree, good until the node is removed; a sequence holds one through a Pin.
  struct Node;

  explicit PrefixIndex(const PrefixIndexOptions& options, ChainHash* chain_hash = &chain_prefix_hash);
  ~PrefixIndex();

  // At least one token is left to compute: hit ≤ floor((n − 1) / u) · u. Changes nothing, not even recency.
  PrefixLookup lookup(std::span<const TokenId> tokens, const CacheScope& scope) const;

  // The tree's root for a scope; then unit by unit. extend() finds or makes the child; a made one holds nothing yet.
  // Both retain what they return: nodes that a sequence stands on or is about to write are held, and stay good until
  // given back as often as they were retained; an unused one then becomes a ghost, or goes when it was never written.
  Node* root(const CacheScope& scope);
  Node* extend(Node* parent, std::span<const TokenId> unit);
  void give_back(Node* node);

  // Marks units of a prompt as being computed by a request of the scope's owner (for kNotYetWritten); counted, undone
  // by `false` before the node is given back. Only that owner hears of it.
  void announce(Node* node, const CacheScope& scope, bool is_being_written);

  // The scope's owner was served this unit: it lies within the hit of a request of its, or was computed for one. From
  // then on explanations to that owner may mention the unit; each call makes it the owner's most recent. The newest
  // kMaxOwnersPerUnit owners of a unit are kept. Latents come first: a unit that was never written is credited to
  // nobody. In a model without MLA layers this is what marks a unit as computed.
  void credit(Node* node, const CacheScope& scope);

  // Latents of this unit (and of the page's rows before it) lie in `block`, which becomes one more place of all these
  // units. No effect when `block` is named there already. False, and nothing is named, when the units before the page
  // have no latents (they were quarantined while the sequence ran): the block is then not shared.
  bool add_latents(Node* node, BlockId block);

  // A state of every group at the node's end; latents come first. False, and nothing changed, when the node has one
  // already (that one stays), or has no latents to go with it. `loss` gets what retention drops: a chain without
  // branches keeps checkpoints_per_chain of them; the newest two turns, the newest prompt end, junctions and the newest
  // interval one are kept longest; the one just added always stays.
  bool add_checkpoint(Node* node, CheckpointId checkpoint, CheckpointReason reason, IndexLoss& loss);
  std::optional<CheckpointId> checkpoint_at(const Node* node) const;

  // A deeper checkpoint exists on the same chain, before it branches: evicted first.
  bool is_dominated(CheckpointId checkpoint) const;

  // All keys of a block that is about to be reused, or a checkpoint whose blocks are. `why` is what misses will say:
  // kEvicted or kQuarantined. An unknown block or checkpoint loses nothing.
  IndexLoss remove_block(BlockId block, MissReason why);
  IndexLoss remove_checkpoint(CheckpointId checkpoint, MissReason why);

  // Everything from the unit that holds `begin` on along `tokens`, whoever branches off behind it. Sequences that hold
  // such nodes keep them, but the nodes are cut off: nothing written through them, or through what extends them, can
  // be matched any more (they computed on what was wrong).
  IndexLoss quarantine(std::span<const TokenId> tokens, const CacheScope& scope, int64_t begin);

  int64_t position(const Node* node) const;  // tokens from the start to the node's end
  bool has_latents(const Node* node) const;
  PrefixHash hash(const Node* node) const;  // of all tokens to the node's end, and of identity and salt
  bool is_cut_off(const Node* node) const;  // by a quarantine
  int64_t num_units() const;                // nodes with latents or a checkpoint
  int64_t num_checkpoints() const;
  int64_t num_ghosts() const;
  int64_t num_held() const;  // retained and not given back yet, roots and cut-off nodes included

  // The laws above, and every count and link inside; the error says what does not hold.
  Status audit() const;
  // Blocks and checkpoints the index names, each once; for the owner's audit.
  std::vector<BlockId> named_blocks() const;
  std::vector<CheckpointId> named_checkpoints() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
