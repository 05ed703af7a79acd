// cache/prefix_index.h: which prefixes were computed and where their latents and states lie: a tree of hash units.
//
//   A node is one unit of `hash_unit` tokens behind its parent, found by a chained 128-bit hash (h_i = H(h_{i−1},
//   tokens of unit i); h_0 = H(identity, salt)) and confirmed by its tokens, which are kept: a collision is a miss,
//   never a wrong hit. A node may hold latents (one or more blocks whose rows of this unit are written; any block that
//   holds a unit holds the earlier rows of its page too) and a checkpoint (a KDA state of every group after the unit's
//   last token). A node whose latents went stays for a while as a ghost, so that a miss can be explained; ghosts are
//   bounded and the oldest go first.
//
//   Law     latents are downward closed: a node with latents has a parent with latents (or is a first unit). Removing a
//           block therefore may orphan deeper blocks and checkpoints: they are reported, for the owner to free.
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

// What stopped being reachable: the owner takes their keys away, and frees what has no user.
struct IndexLoss {
  std::vector<BlockId> blocks;            // no key of theirs is left
  std::vector<CheckpointId> checkpoints;  // no longer known to the index
  bool empty() const { return blocks.empty() && checkpoints.empty(); }
};

struct PrefixLookup {
  PrefixMatch match;
  std::vector<BlockId> pages;  // page p of [0, hit): a block that holds its rows up to the page's end or the hit
  std::optional<CheckpointId> checkpoint;  // at the hit; none when the hit is 0 or there are no KDA layers
};

class PrefixIndex {
 public:
  // A place in the tree, good until the node is removed; a sequence holds one through a Pin.
  struct Node;

  explicit PrefixIndex(const PrefixIndexOptions& options);
  ~PrefixIndex();

  // At least one token is left to compute: hit ≤ floor((n − 1) / u) · u. Changes nothing, not even recency.
  PrefixLookup lookup(std::span<const TokenId> tokens, const CacheScope& scope) const;

  // The tree's root for a scope; then unit by unit. extend() finds or makes the child; a made one holds nothing yet.
  // Nodes that a sequence stands on or is about to write are held: retain()ed once for every sequence and never removed
  // until given back by give_back(), which lets an unused one become a ghost.
  Node* root(const CacheScope& scope);
  Node* extend(Node* parent, std::span<const TokenId> unit);  // retains the child
  void give_back(Node* node);

  // Marks units of a prompt as being computed by somebody (for kNotYetWritten); counted, undone by `false`.
  void announce(Node* node, bool is_being_written);

  // Latents of this unit (and of the page's rows before it) lie in `block`. No effect when `block` is named already.
  void add_latents(Node* node, BlockId block);

  // A state of every group at the node's end. When the node has one already, that one stays and false is returned.
  // `loss` gets what retention drops: at most checkpoints_per_chain on a chain without branches, the newest two turns,
  // junctions and the newest interval one kept longest.
  bool add_checkpoint(Node* node, CheckpointId checkpoint, CheckpointReason reason, IndexLoss& loss);
  std::optional<CheckpointId> checkpoint_at(const Node* node) const;

  // A deeper checkpoint exists on the same chain and the node is no branching point: evicted first.
  bool is_dominated(CheckpointId checkpoint) const;

  // All keys of a block that is about to be reused, or a checkpoint whose blocks are. `why` is what misses will say.
  IndexLoss remove_block(BlockId block, MissReason why);
  IndexLoss remove_checkpoint(CheckpointId checkpoint, MissReason why);

  // Everything from the unit that holds `begin` on along `tokens`, whoever branches off behind it.
  IndexLoss quarantine(std::span<const TokenId> tokens, const CacheScope& scope, int64_t begin);

  int64_t position(const Node* node) const;  // tokens from the start to the node's end
  bool has_latents(const Node* node) const;
  int64_t num_units() const;  // nodes with latents or a checkpoint
  int64_t num_checkpoints() const;
  int64_t num_ghosts() const;

  // Names every unit's blocks: `is_keyed(block)` and the laws above hold; the error says what does not.
  Status audit() const;
  // Blocks and checkpoints the index names, each once; for the owner's audit.
  std::vector<BlockId> named_blocks() const;
  std::vector<CheckpointId> named_checkpoints() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
