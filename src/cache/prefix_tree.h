// cache/prefix_tree.h: the nodes of the prefix index: links, look-up by hash, life and death. What a node's contents
// mean is prefix_index's.
//
//   A node is   a unit    holds latents or a checkpoint
//               live      a unit, or has a live descendant
//               anchored  live, or retained, or has an anchored descendant
//               a ghost   written once and not anchored: kept for explanations, the oldest go first
//               cut off   out of the tree, kept for the sequences that retain it
//   A written node's parent is written (or a root). A node is anchored at least as long as its children, so the list of
//   ghosts has children before their parents and its oldest entry is always a leaf. Threading: engine thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/prefix_hash.h"
#include "cache/prefix_index.h"

namespace tandem {

using OwnerId = Id<struct OwnerTag>;  // an owner's name, interned

// What an owner may hear of a unit.
struct UnitHearer {
  OwnerId owner;
  int32_t announced = 0;     // requests of the owner that compute the unit now
  bool is_credited = false;  // was served the unit
  uint64_t last_time = 0;    // of the tree's clock
};

struct PrefixIndex::Node {
  PrefixHash hash;
  int64_t position = 0;       // tokens from the start to the node's end; 0: a root
  TokenId* tokens = nullptr;  // of the unit; belongs to the tree's memory
  std::string_view salt;      // roots: the key in the tree's map

  Node* parent = nullptr;  // none: a root, or cut off
  Node* first_child = nullptr;
  Node* previous_sibling = nullptr;
  Node* next_sibling = nullptr;
  Node* next_in_bucket = nullptr;
  Node* previous_ghost = nullptr;
  Node* next_ghost = nullptr;

  std::vector<BlockId> blocks;
  std::optional<CheckpointId> checkpoint;
  CheckpointReason checkpoint_reason = CheckpointReason::kPromptEnd;
  std::optional<MissReason> lost_checkpoint;  // why the last one went
  MissReason lost_latents = MissReason::kEvicted;
  std::vector<UnitHearer> hearers;

  int32_t retained = 0;
  int32_t live_children = 0;
  int32_t anchored_children = 0;
  bool is_written = false;  // was a unit once, or (without MLA) computed
  bool is_unit = false;
  bool is_live = false;
  bool is_anchored = false;
  bool is_ghost = false;
  bool is_cut_off = false;

  const UnitHearer* find_hearer(std::optional<OwnerId> owner) const;
  UnitHearer& hearer(OwnerId owner);
  bool is_credited_to(std::optional<OwnerId> owner) const;
  bool is_announced_by(std::optional<OwnerId> owner) const;
};

class PrefixTree {
 public:
  using Node = PrefixIndex::Node;

  PrefixTree(const PrefixIndexOptions& options, ChainHash* chain_hash);

  const std::map<std::string, Node*, std::less<>>& roots() const { return roots_; }
  Node* find_root(std::string_view salt) const;
  Node* make_root(std::string_view salt);

  // `inner` is hash_prefix_unit(unit).
  Node* find_child(const Node* parent, std::span<const TokenId> unit, const PrefixHash& inner) const;
  Node* make_child(Node* parent, std::span<const TokenId> unit, const PrefixHash& inner);

  void retain(Node* node);
  void release(Node* node);

  // After a node's contents, or what holds it, changed: its life and that of the nodes above.
  void refresh(Node* node);
  // Takes a retained node without contents out of the tree; a ghost with its children and history stands in for it.
  void cut_off(Node* node);
  // Ends an operation: frees what nothing refers to any more, and ghosts beyond the limit.
  void settle();

  // The node and everything below, parents before children.
  std::vector<Node*> subtree(Node* node) const;

  int64_t unit_tokens() const { return unit_tokens_; }
  int64_t num_units() const { return num_units_; }
  int64_t num_ghosts() const { return num_ghosts_; }
  int64_t num_held() const { return num_held_; }

  // Links, counts and the laws of life; what contents mean is audited by the index.
  Status audit() const;

 private:
  Node* allocate();
  void free(Node* node);
  void insert_into_bucket(Node* node);
  void erase_from_bucket(Node* node);
  void link(Node* node, Node* parent);
  void unlink(Node* node);
  void append_ghost(Node* node);
  void erase_ghost(Node* node);
  void loosen(Node* node);
  void remove_root(Node* node);
  Status audit_node(const Node* node) const;

  int64_t unit_tokens_;
  int64_t max_ghosts_;
  std::string identity_;
  ChainHash* chain_hash_;

  std::map<std::string, Node*, std::less<>> roots_;
  std::vector<Node*> buckets_;  // a power of two of lists
  int64_t num_linked_ = 0;      // nodes in buckets
  Node* oldest_ghost_ = nullptr;
  Node* newest_ghost_ = nullptr;
  int64_t num_units_ = 0;
  int64_t num_ghosts_ = 0;
  int64_t num_held_ = 0;

  std::vector<std::unique_ptr<Node[]>> node_slabs_;
  std::vector<std::unique_ptr<TokenId[]>> token_slabs_;
  std::vector<Node*> free_nodes_;
  std::vector<Node*> discarded_;  // unlinked during this operation
};

}  // namespace tandem
