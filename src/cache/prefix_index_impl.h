// cache/prefix_index_impl.h: the inside of PrefixIndex, shared by its sources.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/prefix_tree.h"

namespace tandem {

struct PrefixIndex::Impl {
  PrefixIndexOptions options;
  PrefixTree tree;
  // The deepest node that names a block; the nodes from there up to the page's first unit name it too.
  std::vector<Node*> block_tips;  // by block
  int64_t num_blocks = 0;
  std::unordered_map<int32_t, Node*> checkpoints;
  std::map<std::string, OwnerId, std::less<>> owners;  // few: the accounts of a server
  uint64_t clock = 0;

  Impl(const PrefixIndexOptions& options_in, ChainHash* chain_hash) : options(options_in), tree(options, chain_hash) {}

  std::optional<OwnerId> find_owner(std::string_view name) const;
  OwnerId intern_owner(std::string_view name);
  Node* tip(BlockId block) const;
  void set_tip(BlockId block, Node* node);
  bool is_page_start(const Node* node) const;
  // The node of the `unit`-th unit of `tokens`; none when the tree does not reach so far.
  Node* find_unit(std::span<const TokenId> tokens, std::string_view salt, int64_t unit) const;

  // Takes latents and checkpoints from `nodes`, which is a whole subtree, parents first.
  void empty_subtree(const std::vector<Node*>& nodes, MissReason why, IndexLoss& loss);
  void drop_checkpoint(Node* node, MissReason why, IndexLoss& loss);
  // Retention on the chain of `added`, which stays.
  void thin_out(Node* added, IndexLoss& loss);

  Status audit_contents(const Node* node) const;
};

}  // namespace tandem
