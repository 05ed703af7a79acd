#include "cache/prefix_tree.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

constexpr int64_t kNodesPerSlab = 64;
constexpr size_t kFirstBuckets = 64;

}  // namespace

const UnitHearer* PrefixIndex::Node::find_hearer(std::optional<OwnerId> owner) const {
  if (!owner) return nullptr;
  const auto found = std::find_if(hearers.begin(), hearers.end(), [&](const auto& h) { return h.owner == *owner; });
  return found == hearers.end() ? nullptr : &*found;
}

UnitHearer& PrefixIndex::Node::hearer(OwnerId owner) {
  for (UnitHearer& known : hearers) {
    if (known.owner == owner) return known;
  }
  return hearers.emplace_back(UnitHearer{.owner = owner, .announced = 0, .is_credited = false, .last_time = 0});
}

bool PrefixIndex::Node::is_credited_to(std::optional<OwnerId> owner) const {
  const UnitHearer* known = find_hearer(owner);
  return known != nullptr && known->is_credited;
}

bool PrefixIndex::Node::is_announced_by(std::optional<OwnerId> owner) const {
  const UnitHearer* known = find_hearer(owner);
  return known != nullptr && known->announced > 0;
}

PrefixTree::PrefixTree(const PrefixIndexOptions& options, ChainHash* chain_hash)
    : unit_tokens_(options.hash_unit),
      max_ghosts_(options.max_ghosts),
      identity_(options.identity),
      chain_hash_(chain_hash),
      buckets_(kFirstBuckets, nullptr) {}

PrefixTree::Node* PrefixTree::find_root(std::string_view salt) const {
  const auto found = roots_.find(salt);
  return found == roots_.end() ? nullptr : found->second;
}

PrefixTree::Node* PrefixTree::make_root(std::string_view salt) {
  Node* node = allocate();
  const auto placed = roots_.emplace(std::string(salt), node).first;
  node->hash = hash_prefix_root(identity_, unit_tokens_, salt);
  node->salt = placed->first;
  return node;
}

PrefixTree::Node* PrefixTree::find_child(const Node* parent, std::span<const TokenId> unit,
                                         const PrefixHash& inner) const {
  const PrefixHash hash = chain_hash_(parent->hash, inner);
  for (Node* node = buckets_[hash.low & (buckets_.size() - 1)]; node != nullptr; node = node->next_in_bucket) {
    if (node->hash == hash && node->parent == parent && std::equal(unit.begin(), unit.end(), node->tokens)) return node;
  }
  return nullptr;
}

PrefixTree::Node* PrefixTree::make_child(Node* parent, std::span<const TokenId> unit, const PrefixHash& inner) {
  Node* node = allocate();
  node->hash = chain_hash_(parent->hash, inner);
  node->position = parent->position + unit_tokens_;
  std::copy(unit.begin(), unit.end(), node->tokens);
  if (parent->is_cut_off) {
    node->is_cut_off = true;
    return node;
  }
  link(node, parent);
  insert_into_bucket(node);
  return node;
}

void PrefixTree::retain(Node* node) {
  ++node->retained;
  ++num_held_;
  refresh(node);
}

void PrefixTree::release(Node* node) {
  TANDEM_CHECK(node->retained > 0, "a node is given back as often as it was retained");
  --node->retained;
  --num_held_;
  if (!node->is_cut_off) {
    refresh(node);
  } else if (node->retained == 0) {
    discarded_.push_back(node);
  }
}

void PrefixTree::refresh(Node* node) {
  if (node->is_cut_off) return;
  while (node != nullptr) {
    const bool is_unit = !node->blocks.empty() || node->checkpoint.has_value();
    num_units_ += static_cast<int64_t>(is_unit) - static_cast<int64_t>(node->is_unit);
    node->is_unit = is_unit;
    const bool is_live = is_unit || node->live_children > 0;
    const bool is_anchored = is_live || node->retained > 0 || node->anchored_children > 0;
    if (is_live == node->is_live && is_anchored == node->is_anchored) return;
    Node* parent = node->parent;
    if (is_live != node->is_live && parent != nullptr) parent->live_children += is_live ? 1 : -1;
    node->is_live = is_live;
    if (is_anchored != node->is_anchored) {
      if (parent != nullptr) parent->anchored_children += is_anchored ? 1 : -1;
      node->is_anchored = is_anchored;
      if (!is_anchored) loosen(node);
      if (is_anchored && node->is_ghost) erase_ghost(node);
    }
    node = parent;
  }
}

// Nothing holds the node any more.
void PrefixTree::loosen(Node* node) {
  if (node->position == 0) {
    if (node->first_child == nullptr) remove_root(node);
  } else if (node->is_written) {
    append_ghost(node);
  } else {
    TANDEM_CHECK(node->first_child == nullptr, "a node that was never written has no written children");
    unlink(node);
    discarded_.push_back(node);
  }
}

void PrefixTree::cut_off(Node* node) {
  Node* parent = node->parent;
  if (!node->is_written) {
    TANDEM_CHECK(node->first_child == nullptr, "children are cut off before their parents");
    unlink(node);
    if (node->is_anchored) --parent->anchored_children;
    refresh(parent);
  } else {
    Node* ghost = allocate();
    ghost->hash = node->hash;
    ghost->position = node->position;
    std::copy_n(node->tokens, unit_tokens_, ghost->tokens);
    ghost->lost_checkpoint = node->lost_checkpoint;
    ghost->lost_latents = node->lost_latents;
    ghost->is_written = true;
    for (UnitHearer hearer : node->hearers) {
      if (!hearer.is_credited) continue;
      hearer.announced = 0;
      ghost->hearers.push_back(hearer);
    }
    unlink(node);
    link(ghost, parent);
    insert_into_bucket(ghost);
    ghost->first_child = node->first_child;
    for (Node* child = ghost->first_child; child != nullptr; child = child->next_sibling) child->parent = ghost;
    ghost->live_children = node->live_children;
    ghost->anchored_children = node->anchored_children;
    ghost->is_anchored = node->is_anchored;
    ghost->is_live = node->is_live;
    refresh(ghost);
  }
  node->parent = nullptr;
  node->first_child = nullptr;
  node->live_children = node->anchored_children = 0;
  node->is_live = node->is_anchored = false;
  node->is_cut_off = true;
}

void PrefixTree::settle() {
  while (num_ghosts_ > max_ghosts_) {
    Node* node = oldest_ghost_;
    TANDEM_CHECK(node->first_child == nullptr, "the oldest ghost is a leaf");
    Node* parent = node->parent;
    erase_ghost(node);
    unlink(node);
    discarded_.push_back(node);
    if (parent->position == 0 && parent->first_child == nullptr && !parent->is_anchored) remove_root(parent);
  }
  for (Node* node : discarded_) free(node);
  discarded_.clear();
}

std::vector<PrefixTree::Node*> PrefixTree::subtree(Node* top) const {
  std::vector<Node*> nodes;
  Node* node = top;
  while (true) {
    nodes.push_back(node);
    if (node->first_child != nullptr) {
      node = node->first_child;
      continue;
    }
    while (node != top && node->next_sibling == nullptr) node = node->parent;
    if (node == top) return nodes;
    node = node->next_sibling;
  }
}

PrefixTree::Node* PrefixTree::allocate() {
  if (free_nodes_.empty()) {
    node_slabs_.push_back(std::make_unique<Node[]>(kNodesPerSlab));
    token_slabs_.push_back(std::make_unique<TokenId[]>(static_cast<size_t>(kNodesPerSlab * unit_tokens_)));
    for (int64_t i = kNodesPerSlab - 1; i >= 0; --i) {
      Node* node = &node_slabs_.back()[static_cast<size_t>(i)];
      node->tokens = token_slabs_.back().get() + i * unit_tokens_;
      free_nodes_.push_back(node);
    }
  }
  Node* node = free_nodes_.back();
  free_nodes_.pop_back();
  return node;
}

// The vectors keep their capacity: a node that comes back allocates nothing.
void PrefixTree::free(Node* node) {
  node->blocks.clear();
  node->hearers.clear();
  Node blank;
  blank.tokens = node->tokens;
  blank.blocks = std::move(node->blocks);
  blank.hearers = std::move(node->hearers);
  *node = std::move(blank);
  free_nodes_.push_back(node);
}

void PrefixTree::insert_into_bucket(Node* node) {
  if (static_cast<size_t>(num_linked_) >= buckets_.size()) {
    std::vector<Node*> old(buckets_.size() * 2, nullptr);
    old.swap(buckets_);
    for (Node* list : old) {
      while (list != nullptr) {
        Node* next = list->next_in_bucket;
        Node*& bucket = buckets_[list->hash.low & (buckets_.size() - 1)];
        list->next_in_bucket = bucket;
        bucket = list;
        list = next;
      }
    }
  }
  Node*& bucket = buckets_[node->hash.low & (buckets_.size() - 1)];
  node->next_in_bucket = bucket;
  bucket = node;
  ++num_linked_;
}

void PrefixTree::erase_from_bucket(Node* node) {
  Node** place = &buckets_[node->hash.low & (buckets_.size() - 1)];
  while (*place != node) place = &(*place)->next_in_bucket;
  *place = node->next_in_bucket;
  node->next_in_bucket = nullptr;
  --num_linked_;
}

void PrefixTree::link(Node* node, Node* parent) {
  node->parent = parent;
  node->next_sibling = parent->first_child;
  if (parent->first_child != nullptr) parent->first_child->previous_sibling = node;
  parent->first_child = node;
}

void PrefixTree::unlink(Node* node) {
  erase_from_bucket(node);
  (node->previous_sibling != nullptr ? node->previous_sibling->next_sibling : node->parent->first_child) =
      node->next_sibling;
  if (node->next_sibling != nullptr) node->next_sibling->previous_sibling = node->previous_sibling;
  node->previous_sibling = node->next_sibling = nullptr;
}

void PrefixTree::append_ghost(Node* node) {
  node->is_ghost = true;
  node->previous_ghost = newest_ghost_;
  (newest_ghost_ != nullptr ? newest_ghost_->next_ghost : oldest_ghost_) = node;
  newest_ghost_ = node;
  ++num_ghosts_;
}

void PrefixTree::erase_ghost(Node* node) {
  (node->previous_ghost != nullptr ? node->previous_ghost->next_ghost : oldest_ghost_) = node->next_ghost;
  (node->next_ghost != nullptr ? node->next_ghost->previous_ghost : newest_ghost_) = node->previous_ghost;
  node->previous_ghost = node->next_ghost = nullptr;
  node->is_ghost = false;
  --num_ghosts_;
}

void PrefixTree::remove_root(Node* node) {
  roots_.erase(roots_.find(node->salt));
  discarded_.push_back(node);
}

}  // namespace tandem
