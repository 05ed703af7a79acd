// Two ordered sets. The privileged one holds the more recently needed half; the other orders by (needs, last need).
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "stream/expert_policy.h"

namespace tandem {
namespace {

class LfruPolicy final : public ExpertPolicy {
 public:
  LfruPolicy(int64_t num_layers, int64_t num_experts)
      : num_experts_(num_experts), entries_(static_cast<size_t>(num_layers * num_experts)) {}

  void on_step(int64_t layer, std::span<const int32_t> needed) override {
    for (const int32_t expert : needed) {
      const int64_t id = layer * num_experts_ + expert;
      Entry& entry = entries_[static_cast<size_t>(id)];
      if (!entry.has_memory) continue;
      take_out(id);
      ++entry.needs;
      entry.last_need = ++clock_;
      put_in_front(id);
    }
  }

  void on_insert(ExpertKey key) override {
    const int64_t id = key.layer * num_experts_ + key.expert;
    Entry& entry = entries_[static_cast<size_t>(id)];
    TANDEM_CHECK(!entry.has_memory, "an expert has memory once");
    entry = {true, false, 1, ++clock_};
    put_in_front(id);
  }

  void on_remove(ExpertKey key) override {
    const int64_t id = key.layer * num_experts_ + key.expert;
    TANDEM_CHECK(entries_[static_cast<size_t>(id)].has_memory, "an expert without memory cannot lose it");
    take_out(id);
    entries_[static_cast<size_t>(id)].has_memory = false;
  }

  std::optional<ExpertKey> victim(ExpertKey, bool, FunctionRef<bool(ExpertKey)> is_pinned) override {
    for (const auto& [needs, last, id] : rest_) {
      if (!is_pinned(key_of(id))) return key_of(id);
    }
    for (const auto& [last, id] : privileged_) {
      if (!is_pinned(key_of(id))) return key_of(id);
    }
    return std::nullopt;
  }

 private:
  struct Entry {
    bool has_memory = false;
    bool is_privileged = false;
    int64_t needs = 0;
    int64_t last_need = 0;
  };

  ExpertKey key_of(int64_t id) const {
    return {static_cast<int32_t>(id / num_experts_), static_cast<int32_t>(id % num_experts_)};
  }

  void put_in_front(int64_t id) {
    Entry& entry = entries_[static_cast<size_t>(id)];
    entry.is_privileged = true;
    privileged_.emplace(entry.last_need, id);
    while (privileged_.size() > rest_.size() + 1) {
      const int64_t oldest = std::get<1>(*privileged_.begin());
      privileged_.erase(privileged_.begin());
      Entry& moved = entries_[static_cast<size_t>(oldest)];
      moved.is_privileged = false;
      rest_.emplace(moved.needs, moved.last_need, oldest);
    }
  }

  void take_out(int64_t id) {
    const Entry& entry = entries_[static_cast<size_t>(id)];
    if (entry.is_privileged) {
      privileged_.erase({entry.last_need, id});
    } else {
      rest_.erase({entry.needs, entry.last_need, id});
    }
  }

  int64_t num_experts_;
  int64_t clock_ = 0;
  std::vector<Entry> entries_;
  std::set<std::pair<int64_t, int64_t>> privileged_;      // (last need, id)
  std::set<std::tuple<int64_t, int64_t, int64_t>> rest_;  // (needs, last need, id)
};

}  // namespace

std::unique_ptr<ExpertPolicy> make_lfru_policy(int64_t num_layers, int64_t num_experts) {
  return std::make_unique<LfruPolicy>(num_layers, num_experts);
}

}  // namespace tandem
