// weights/fault_list.h: collects what is wrong with a checkpoint, so that one refusal names everything at once. The
// number of faults is exact; the text keeps the first kMaxListed of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cat.h"
#include "tandem/status.h"

namespace tandem {

class FaultList {
 public:
  static constexpr size_t kMaxListed = 10'000;  // every fault of any real accident; a bound on memory

  template <class... Pieces>
  void add(const Pieces&... pieces) {
    ++count_;
    if (lines_.size() < kMaxListed) lines_.push_back(cat(pieces...));
  }
  int64_t count() const { return count_; }
  bool empty() const { return count_ == 0; }

  // OK without faults; else "<object>: <n> fault(s):" and a line each.
  Status to_status(std::string_view object) const {
    if (count_ == 0) return Status::ok();
    std::string text = cat(object, ": ", count_, count_ == 1 ? " fault:" : " faults:");
    for (const std::string& line : lines_) text += cat("\n  - ", line);
    const int64_t unlisted = count_ - static_cast<int64_t>(lines_.size());
    if (unlisted > 0) text += cat("\n  … and ", unlisted, " more");
    return Status::invalid(std::move(text));
  }

 private:
  std::vector<std::string> lines_;
  int64_t count_ = 0;
};

}  // namespace tandem
