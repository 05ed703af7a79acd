// A list through all experts, least recently needed first; those without memory are not in it.
#include <vector>

#include "base/check.h"
#include "stream/expert_policy.h"

namespace tandem {
namespace {

class LruPolicy final : public ExpertPolicy {
 public:
  LruPolicy(int64_t num_layers, int64_t num_experts)
      : num_experts_(num_experts), nodes_(static_cast<size_t>(num_layers * num_experts) + 1) {
    nodes_.back().previous = nodes_.back().next = head();
  }

  void on_step(int64_t layer, std::span<const int32_t> needed) override {
    for (const int32_t expert : needed) {
      const size_t node = index({static_cast<int32_t>(layer), expert});
      if (!nodes_[node].listed) continue;
      unlink(node);
      append(node);
    }
  }
  void on_insert(ExpertKey key) override { append(index(key)); }
  void on_remove(ExpertKey key) override { unlink(index(key)); }

  std::optional<ExpertKey> victim(ExpertKey, bool, FunctionRef<bool(ExpertKey)> is_pinned) override {
    for (size_t node = nodes_[head()].next; node != head(); node = nodes_[node].next) {
      const ExpertKey key = {static_cast<int32_t>(static_cast<int64_t>(node) / num_experts_),
                             static_cast<int32_t>(static_cast<int64_t>(node) % num_experts_)};
      if (!is_pinned(key)) return key;
    }
    return std::nullopt;
  }

 private:
  struct Node {
    size_t previous = 0, next = 0;
    bool listed = false;
  };
  size_t head() const { return nodes_.size() - 1; }
  size_t index(ExpertKey key) const { return static_cast<size_t>(key.layer * num_experts_ + key.expert); }

  void append(size_t node) {
    TANDEM_CHECK(!nodes_[node].listed, "an expert has memory once");
    const size_t last = nodes_[head()].previous;
    nodes_[node] = {last, head(), true};
    nodes_[last].next = node;
    nodes_[head()].previous = node;
  }
  void unlink(size_t node) {
    TANDEM_CHECK(nodes_[node].listed, "an expert without memory cannot lose it");
    nodes_[nodes_[node].previous].next = nodes_[node].next;
    nodes_[nodes_[node].next].previous = nodes_[node].previous;
    nodes_[node].listed = false;
  }

  int64_t num_experts_;
  std::vector<Node> nodes_;  // of key index(key); the last is the head of the ring
};

}  // namespace

std::unique_ptr<ExpertPolicy> make_lru_policy(int64_t num_layers, int64_t num_experts) {
  return std::make_unique<LruPolicy>(num_layers, num_experts);
}

}  // namespace tandem
