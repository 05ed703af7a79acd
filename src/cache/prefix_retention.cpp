// Which checkpoints of a chain are kept, and which one goes first.
#include <algorithm>
#include <array>

#include "cache/prefix_index_impl.h"

namespace tandem {
namespace {

using Node = PrefixIndex::Node;

Node* only_live_child(const Node* node) {
  if (node->live_children != 1) return nullptr;
  Node* child = node->first_child;
  while (!child->is_live) child = child->next_sibling;
  return child;
}

// Nodes with a checkpoint on the part of the chain around `node` that has no branches, from the start on. A branching
// point's own checkpoint serves all its branches and belongs to none of them.
std::vector<Node*> unbranched_checkpoints(Node* node) {
  std::vector<Node*> chain;
  for (Node* unit = node; unit->position > 0 && unit->live_children <= 1; unit = unit->parent) {
    if (unit->checkpoint) chain.push_back(unit);
  }
  std::reverse(chain.begin(), chain.end());
  if (node->live_children > 1) return chain;
  for (Node* unit = only_live_child(node); unit != nullptr && unit->live_children <= 1; unit = only_live_child(unit)) {
    if (unit->checkpoint) chain.push_back(unit);
  }
  return chain;
}

// The lowest goes first; of equals the one nearest the start.
enum Keep { kOldInterval, kOld, kNewestPromptEnd, kNewestInterval, kNewestTurn, kJunctionPoint };

// The first of a chain to go, `added` apart.
Node* first_to_go(const std::vector<Node*>& chain, const Node* added) {
  std::array<int, 5> newer = {};  // checkpoints behind, by reason
  Node* victim = nullptr;
  Keep lowest = kJunctionPoint;
  for (auto place = chain.rbegin(); place != chain.rend(); ++place) {
    const CheckpointReason reason = (*place)->checkpoint_reason;
    const int num_newer = newer[static_cast<size_t>(reason)]++;
    Keep keep = kOld;
    switch (reason) {
      case CheckpointReason::kPromptEnd:
      case CheckpointReason::kPromptEndInclusive: keep = num_newer < 1 ? kNewestPromptEnd : kOld; break;
      case CheckpointReason::kTurn: keep = num_newer < 2 ? kNewestTurn : kOld; break;
      case CheckpointReason::kJunction: keep = kJunctionPoint; break;
      case CheckpointReason::kInterval: keep = num_newer < 1 ? kNewestInterval : kOldInterval; break;
    }
    if (*place == added || (victim != nullptr && keep > lowest)) continue;
    victim = *place;
    lowest = keep;
  }
  return victim;
}

}  // namespace

void PrefixIndex::Impl::thin_out(Node* added, IndexLoss& loss) {
  std::vector<Node*> chain = unbranched_checkpoints(added);
  while (static_cast<int64_t>(chain.size()) > options.checkpoints_per_chain) {
    Node* victim = first_to_go(chain, added);
    if (victim == nullptr) return;  // a branching point, which is no part of the chain above it
    std::erase(chain, victim);
    drop_checkpoint(victim, MissReason::kEvicted, loss);
    tree.refresh(victim);
  }
}

bool PrefixIndex::is_dominated(CheckpointId checkpoint) const {
  const auto found = impl_->checkpoints.find(checkpoint.value);
  if (found == impl_->checkpoints.end()) return false;
  for (const Node* node = only_live_child(found->second); node != nullptr; node = only_live_child(node)) {
    if (node->checkpoint) return true;
  }
  return false;
}

}  // namespace tandem
