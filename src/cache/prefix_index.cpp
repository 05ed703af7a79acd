#include "cache/prefix_index.h"

#include <algorithm>

#include "base/check.h"
#include "cache/prefix_index_impl.h"

namespace tandem {

std::string_view checkpoint_reason_name(CheckpointReason reason) {
  switch (reason) {
    case CheckpointReason::kPromptEnd: return "prompt_end";
    case CheckpointReason::kPromptEndInclusive: return "prompt_end_inclusive";
    case CheckpointReason::kTurn: return "turn";
    case CheckpointReason::kJunction: return "junction";
    case CheckpointReason::kInterval: return "interval";
  }
  return "unknown";
}

std::optional<OwnerId> PrefixIndex::Impl::find_owner(std::string_view name) const {
  const auto found = owners.find(name);
  return found == owners.end() ? std::nullopt : std::optional(found->second);
}

OwnerId PrefixIndex::Impl::intern_owner(std::string_view name) {
  const auto found = owners.find(name);
  if (found != owners.end()) return found->second;
  return owners.emplace(std::string(name), OwnerId(static_cast<int32_t>(owners.size()))).first->second;
}

PrefixIndex::Node* PrefixIndex::Impl::tip(BlockId block) const {
  TANDEM_CHECK(block.value > 0, "the null block holds nothing");
  return static_cast<size_t>(block.value) < block_tips.size() ? block_tips[static_cast<size_t>(block.value)] : nullptr;
}

void PrefixIndex::Impl::set_tip(BlockId block, Node* node) {
  const size_t index = static_cast<size_t>(block.value);
  if (index >= block_tips.size()) block_tips.resize(std::max(index + 1, block_tips.size() * 2), nullptr);
  num_blocks += static_cast<int64_t>(node != nullptr) - static_cast<int64_t>(block_tips[index] != nullptr);
  block_tips[index] = node;
}

bool PrefixIndex::Impl::is_page_start(const Node* node) const {
  return (node->position - options.hash_unit) % options.page_tokens == 0;
}

PrefixIndex::Node* PrefixIndex::Impl::find_unit(std::span<const TokenId> tokens, std::string_view salt,
                                                int64_t unit) const {
  const size_t unit_tokens = static_cast<size_t>(options.hash_unit);
  Node* node = tree.find_root(salt);
  for (size_t i = 0; node != nullptr && i <= static_cast<size_t>(unit); ++i) {
    if ((i + 1) * unit_tokens > tokens.size()) return nullptr;
    const auto unit_span = tokens.subspan(i * unit_tokens, unit_tokens);
    node = tree.find_child(node, unit_span, hash_prefix_unit(unit_span));
  }
  return node;
}

void PrefixIndex::Impl::empty_subtree(const std::vector<Node*>& nodes, MissReason why, IndexLoss& loss) {
  const int64_t first_position = nodes.front()->position;
  const int64_t first_page = (first_position - 1) / options.page_tokens;
  for (Node* node : nodes) {
    // A block of the first node's page keeps the rows before that node, if there are any.
    const bool keeps_rows = (node->position - 1) / options.page_tokens == first_page && !is_page_start(nodes.front());
    for (const BlockId block : node->blocks) {
      if (tip(block) != node) continue;
      set_tip(block, keeps_rows ? nodes.front()->parent : nullptr);
      if (!keeps_rows) loss.blocks.push_back(block);
    }
    if (!node->blocks.empty()) node->lost_latents = why;
    node->blocks.clear();
    if (node->checkpoint) drop_checkpoint(node, why, loss);
  }
}

void PrefixIndex::Impl::drop_checkpoint(Node* node, MissReason why, IndexLoss& loss) {
  loss.checkpoints.push_back(*node->checkpoint);
  checkpoints.erase(node->checkpoint->value);
  node->checkpoint.reset();
  node->lost_checkpoint = why;
}

PrefixIndex::PrefixIndex(const PrefixIndexOptions& options, ChainHash* chain_hash)
    : impl_(std::make_unique<Impl>(options, chain_hash)) {
  TANDEM_CHECK(options.hash_unit > 0, "a hash unit holds tokens");
  TANDEM_CHECK(options.page_tokens > 0 && options.page_tokens % options.hash_unit == 0,
               "a page is a whole number of hash units");
  TANDEM_CHECK(options.has_kda || options.has_mla, "a model without KDA and MLA layers has nothing to cache");
  TANDEM_CHECK(options.max_ghosts >= 0 && options.checkpoints_per_chain >= 1, "limits are not negative");
}

PrefixIndex::~PrefixIndex() = default;

PrefixIndex::Node* PrefixIndex::root(const CacheScope& scope) {
  Node* node = impl_->tree.find_root(scope.salt);
  if (node == nullptr) node = impl_->tree.make_root(scope.salt);
  impl_->tree.retain(node);
  return node;
}

PrefixIndex::Node* PrefixIndex::extend(Node* parent, std::span<const TokenId> unit) {
  TANDEM_CHECK(static_cast<int64_t>(unit.size()) == impl_->options.hash_unit, "a node is one whole hash unit");
  const PrefixHash inner = hash_prefix_unit(unit);
  Node* node = parent->is_cut_off ? nullptr : impl_->tree.find_child(parent, unit, inner);
  if (node == nullptr) node = impl_->tree.make_child(parent, unit, inner);
  impl_->tree.retain(node);
  return node;
}

void PrefixIndex::give_back(Node* node) {
  impl_->tree.release(node);
  impl_->tree.settle();
}

void PrefixIndex::announce(Node* node, const CacheScope& scope, bool is_being_written) {
  const OwnerId owner = impl_->intern_owner(scope.owner);
  UnitHearer& hearer = node->hearer(owner);
  TANDEM_CHECK(node->retained > 0, "who computes a unit holds its node");
  TANDEM_CHECK(is_being_written || hearer.announced > 0, "what was not announced cannot be taken back");
  hearer.announced += is_being_written ? 1 : -1;
  if (is_being_written) {
    hearer.last_time = ++impl_->clock;
  } else if (hearer.announced == 0 && !hearer.is_credited) {
    std::erase_if(node->hearers, [&](const UnitHearer& known) { return known.owner == owner; });
  }
}

void PrefixIndex::credit(Node* node, const CacheScope& scope) {
  if (node->is_cut_off || node->position == 0 || (impl_->options.has_mla && !node->is_written)) return;
  UnitHearer& hearer = node->hearer(impl_->intern_owner(scope.owner));
  hearer.is_credited = true;
  hearer.last_time = ++impl_->clock;
  if (!impl_->options.has_mla) {
    for (Node* unit = node; unit->position > 0 && !unit->is_written; unit = unit->parent) unit->is_written = true;
  }
  if (static_cast<int64_t>(node->hearers.size()) <= kMaxOwnersPerUnit) return;
  const auto is_credited = [](const UnitHearer& known) { return known.is_credited; };
  if (std::count_if(node->hearers.begin(), node->hearers.end(), is_credited) <= kMaxOwnersPerUnit) return;
  auto oldest = std::find_if(node->hearers.begin(), node->hearers.end(), is_credited);
  for (auto known = oldest; known != node->hearers.end(); ++known) {
    if (known->is_credited && known->last_time < oldest->last_time) oldest = known;
  }
  oldest->is_credited = false;
  if (oldest->announced == 0) node->hearers.erase(oldest);
}

bool PrefixIndex::add_latents(Node* node, BlockId block) {
  TANDEM_CHECK(impl_->options.has_mla, "a model without MLA layers has no latents");
  TANDEM_CHECK(node->position > 0, "a root is no unit");
  if (node->is_cut_off) return false;
  Node* first = node;
  while (!impl_->is_page_start(first)) first = first->parent;
  if (first->parent->position > 0 && first->parent->blocks.empty()) return false;
  Node* old_tip = impl_->tip(block);
  Node* unit = node;
  for (; unit != first->parent && unit != old_tip; unit = unit->parent) {
    if (std::find(unit->blocks.begin(), unit->blocks.end(), block) != unit->blocks.end()) break;
    unit->blocks.push_back(block);
    unit->is_written = true;
    impl_->tree.refresh(unit);
  }
  if (unit == node) return true;
  TANDEM_CHECK(old_tip == nullptr || unit == old_tip, "a block holds the rows of one sequence");
  impl_->set_tip(block, node);
  return true;
}

bool PrefixIndex::add_checkpoint(Node* node, CheckpointId checkpoint, CheckpointReason reason, IndexLoss& loss) {
  TANDEM_CHECK(impl_->options.has_kda, "a model without KDA layers has no states");
  TANDEM_CHECK(node->position > 0, "a root is no unit");
  if (node->is_cut_off || node->checkpoint || (impl_->options.has_mla && node->blocks.empty())) return false;
  const bool is_new = impl_->checkpoints.emplace(checkpoint.value, node).second;
  TANDEM_CHECK(is_new, "a checkpoint is a state of one prefix");
  node->checkpoint = checkpoint;
  node->checkpoint_reason = reason;
  for (Node* unit = node; unit->position > 0 && !unit->is_written; unit = unit->parent) unit->is_written = true;
  impl_->tree.refresh(node);
  impl_->thin_out(node, loss);
  impl_->tree.settle();
  return true;
}

std::optional<CheckpointId> PrefixIndex::checkpoint_at(const Node* node) const { return node->checkpoint; }

IndexLoss PrefixIndex::remove_block(BlockId block, MissReason why) {
  IndexLoss loss;
  Node* node = impl_->tip(block);
  if (node == nullptr) return loss;
  impl_->set_tip(block, nullptr);
  loss.blocks.push_back(block);
  Node* first_empty = nullptr;  // the shallowest: what is behind it is no prefix any more
  while (true) {
    std::erase(node->blocks, block);
    if (node->blocks.empty()) {
      node->lost_latents = why;
      first_empty = node;
    }
    if (impl_->is_page_start(node)) break;
    node = node->parent;
  }
  if (first_empty == nullptr) return loss;
  const std::vector<Node*> nodes = impl_->tree.subtree(first_empty);
  impl_->empty_subtree(nodes, why, loss);
  for (auto emptied = nodes.rbegin(); emptied != nodes.rend(); ++emptied) impl_->tree.refresh(*emptied);
  impl_->tree.settle();
  return loss;
}

IndexLoss PrefixIndex::remove_checkpoint(CheckpointId checkpoint, MissReason why) {
  IndexLoss loss;
  const auto found = impl_->checkpoints.find(checkpoint.value);
  if (found == impl_->checkpoints.end()) return loss;
  Node* node = found->second;
  impl_->drop_checkpoint(node, why, loss);
  impl_->tree.refresh(node);
  impl_->tree.settle();
  return loss;
}

IndexLoss PrefixIndex::quarantine(std::span<const TokenId> tokens, const CacheScope& scope, int64_t begin) {
  IndexLoss loss;
  TANDEM_CHECK(begin >= 0, "a position is not negative");
  Node* first = impl_->find_unit(tokens, scope.salt, begin / impl_->options.hash_unit);
  if (first == nullptr) return loss;
  const std::vector<Node*> nodes = impl_->tree.subtree(first);
  impl_->empty_subtree(nodes, MissReason::kQuarantined, loss);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    (*node)->lost_latents = MissReason::kQuarantined;
    impl_->tree.refresh(*node);
    if ((*node)->retained > 0) impl_->tree.cut_off(*node);
  }
  impl_->tree.settle();
  return loss;
}

int64_t PrefixIndex::position(const Node* node) const { return node->position; }
bool PrefixIndex::has_latents(const Node* node) const { return !node->blocks.empty(); }
PrefixHash PrefixIndex::hash(const Node* node) const { return node->hash; }
bool PrefixIndex::is_cut_off(const Node* node) const { return node->is_cut_off; }
int64_t PrefixIndex::num_units() const { return impl_->tree.num_units(); }
int64_t PrefixIndex::num_checkpoints() const { return static_cast<int64_t>(impl_->checkpoints.size()); }
int64_t PrefixIndex::num_ghosts() const { return impl_->tree.num_ghosts(); }
int64_t PrefixIndex::num_held() const { return impl_->tree.num_held(); }

std::vector<BlockId> PrefixIndex::named_blocks() const {
  std::vector<BlockId> named;
  for (size_t i = 0; i < impl_->block_tips.size(); ++i) {
    if (impl_->block_tips[i] != nullptr) named.emplace_back(static_cast<int32_t>(i));
  }
  return named;
}

std::vector<CheckpointId> PrefixIndex::named_checkpoints() const {
  std::vector<CheckpointId> named;
  for (const auto& [id, node] : impl_->checkpoints) named.emplace_back(id);
  std::sort(named.begin(), named.end());
  return named;
}

}  // namespace tandem
