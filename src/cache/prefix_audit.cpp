// The laws of the prefix index, checked from the roots on with nothing taken on trust.
#include <algorithm>

#include "base/cat.h"
#include "cache/prefix_index_impl.h"

namespace tandem {
namespace {

Status broken(const PrefixIndex::Node* node, std::string_view law) {
  return Status::failed_precondition(cat("prefix index, unit ending at token ", node->position, ": ", law));
}

}  // namespace

Status PrefixTree::audit_node(const Node* node) const {
  int32_t live_children = 0;
  int32_t anchored_children = 0;
  for (const Node* child = node->first_child; child != nullptr; child = child->next_sibling) {
    if (child->parent != node) return broken(node, "a child names another parent");
    if (child->next_sibling != nullptr && child->next_sibling->previous_sibling != child) {
      return broken(child, "its next sibling does not lead back");
    }
    live_children += child->is_live ? 1 : 0;
    anchored_children += child->is_anchored ? 1 : 0;
  }
  const bool is_unit = !node->blocks.empty() || node->checkpoint.has_value();
  const bool is_live = is_unit || live_children > 0;
  const bool is_anchored = is_live || node->retained > 0 || anchored_children > 0;
  if (live_children != node->live_children || anchored_children != node->anchored_children) {
    return broken(node, cat("counts ", node->live_children, " live and ", node->anchored_children,
                            " anchored children, has ", live_children, " and ", anchored_children));
  }
  if (is_unit != node->is_unit || is_live != node->is_live || is_anchored != node->is_anchored) {
    return broken(node, "is marked otherwise than what it holds says");
  }
  if (node->is_cut_off || node->retained < 0) return broken(node, "is cut off, or given back too often");
  if (node->parent == nullptr) {
    if (node->position != 0) return broken(node, "has no parent");
    if (find_root(node->salt) != node) return broken(node, "is not the root of its salt");
    if (!is_anchored && node->first_child == nullptr) return broken(node, "an unused root was kept");
    return Status::ok();
  }
  if (node->position != node->parent->position + unit_tokens_) return broken(node, "is not one unit behind its parent");
  if (node->is_ghost != (node->is_written && !is_anchored)) return broken(node, "a ghost is written and not anchored");
  if (!node->is_written && (!is_anchored || is_unit)) return broken(node, "was never written and is kept or holds");
  if (node->is_written && node->parent->position > 0 && !node->parent->is_written) {
    return broken(node, "was written, and its parent never");
  }
  const std::span<const TokenId> tokens(node->tokens, static_cast<size_t>(unit_tokens_));
  if (find_child(node->parent, tokens, hash_prefix_unit(tokens)) != node)
    return broken(node, "is not found by its hash");
  return Status::ok();
}

Status PrefixTree::audit() const {
  int64_t num_linked = 0;
  int64_t num_units = 0;
  int64_t num_ghosts = 0;
  int64_t num_retained = 0;
  for (const auto& [salt, root] : roots_) {
    for (const Node* node : subtree(root)) {
      TANDEM_RETURN_IF_ERROR(audit_node(node));
      num_linked += node->position > 0 ? 1 : 0;
      num_units += node->is_unit ? 1 : 0;
      num_ghosts += node->is_ghost ? 1 : 0;
      num_retained += node->retained;
    }
  }
  int64_t num_listed = 0;
  for (const Node* node = oldest_ghost_; node != nullptr; node = node->next_ghost) {
    if (!node->is_ghost) return broken(node, "is listed as a ghost and none");
    ++num_listed;
  }
  const auto wrong = [](std::string_view what, int64_t counted, int64_t found) {
    return Status::failed_precondition(cat("prefix index counts ", counted, " ", what, ", has ", found));
  };
  if (num_linked != num_linked_) return wrong("nodes", num_linked_, num_linked);
  if (num_units != num_units_) return wrong("units", num_units_, num_units);
  if (num_ghosts != num_ghosts_) return wrong("ghosts", num_ghosts_, num_ghosts);
  if (num_listed != num_ghosts_) return wrong("listed ghosts", num_ghosts_, num_listed);
  if (num_ghosts > max_ghosts_) return wrong("ghosts at most", max_ghosts_, num_ghosts);
  if (num_retained > num_held_) return wrong("held nodes", num_held_, num_retained);
  if (!discarded_.empty()) return wrong("discarded nodes", 0, static_cast<int64_t>(discarded_.size()));
  return Status::ok();
}

Status PrefixIndex::Impl::audit_contents(const Node* node) const {
  if (node->parent == nullptr) {
    return node->is_unit ? broken(node, "a root holds latents or a checkpoint") : Status::ok();
  }
  if (!node->blocks.empty() && node->parent->position > 0 && node->parent->blocks.empty()) {
    return broken(node, "has latents and its parent has none");
  }
  for (size_t i = 0; i < node->blocks.size(); ++i) {
    const BlockId block = node->blocks[i];
    if (std::count(node->blocks.begin(), node->blocks.end(), block) != 1) return broken(node, "names a block twice");
    const Node* unit = tip(block);
    while (unit != nullptr && unit != node && !is_page_start(unit)) unit = unit->parent;
    if (unit != node) return broken(node, cat("names block ", block.value, " of another page or branch"));
  }
  if (node->checkpoint) {
    const auto found = checkpoints.find(node->checkpoint->value);
    if (found == checkpoints.end() || found->second != node) return broken(node, "its checkpoint is known elsewhere");
    if (options.has_mla && node->blocks.empty()) return broken(node, "has a checkpoint and no latents");
    if (!options.has_kda) return broken(node, "has a state in a model without KDA layers");
  }
  int32_t announced = 0;
  for (const UnitHearer& hearer : node->hearers) {
    if (!hearer.is_credited && hearer.announced <= 0) return broken(node, "keeps an owner that has no part in it");
    if (hearer.is_credited && !node->is_written) return broken(node, "is credited and was never written");
    announced += hearer.announced;
  }
  if (announced > node->retained) return broken(node, "is announced by more sequences than hold it");
  return Status::ok();
}

Status PrefixIndex::audit() const {
  const Impl& impl = *impl_;
  TANDEM_RETURN_IF_ERROR(impl.tree.audit());
  int64_t num_checkpoints = 0;
  int64_t num_named = 0;  // (node, block) pairs
  for (const auto& [salt, root] : impl.tree.roots()) {
    for (const Node* node : impl.tree.subtree(root)) {
      TANDEM_RETURN_IF_ERROR(impl.audit_contents(node));
      num_checkpoints += node->checkpoint ? 1 : 0;
      num_named += static_cast<int64_t>(node->blocks.size());
    }
  }
  if (num_checkpoints != static_cast<int64_t>(impl.checkpoints.size())) {
    return Status::failed_precondition(
        cat("prefix index knows ", impl.checkpoints.size(), " checkpoints, its units ", num_checkpoints));
  }
  int64_t num_blocks = 0;
  for (size_t i = 0; i < impl.block_tips.size(); ++i) {
    const Node* node = impl.block_tips[i];
    if (node == nullptr) continue;
    ++num_blocks;
    const BlockId block(static_cast<int32_t>(i));
    while (true) {
      if (std::find(node->blocks.begin(), node->blocks.end(), block) == node->blocks.end()) {
        return broken(node, cat("does not name block ", i, ", which holds its rows"));
      }
      --num_named;
      if (impl.is_page_start(node)) break;
      node = node->parent;
    }
  }
  if (num_blocks != impl.num_blocks || num_named != 0) {
    return Status::failed_precondition(cat("prefix index counts ", impl.num_blocks, " blocks, has ", num_blocks, "; ",
                                           num_named, " names are not between a block's deepest unit and its page"));
  }
  return Status::ok();
}

}  // namespace tandem
