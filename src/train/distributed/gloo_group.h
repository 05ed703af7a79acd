// train/distributed/gloo_group.h: ranks of one training run on one or more hosts, over Gloo.
//
//   Needs LibTorch with c10d and Gloo's headers (Debian's libgloo-dev): TANDEM_HAS_GLOO, set by cmake/libtorch.cmake.
//   Threading: every rank makes the same calls in the same order, from one thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "train/optim/quantile_balancing.h"

namespace c10d {
class ProcessGroup;
}

namespace tandem::train {

class GlooGroup {
 public:
  // Meets the other ranks through the file `meeting_path` on a file system that all see (new for each run), and talks
  // over the interface that `hostname` resolves to. Blocks until all `num_ranks` are there, or LibTorch's time-out.
  static Result<GlooGroup> join(const std::string& meeting_path, const std::string& hostname, int rank, int num_ranks);
  GlooGroup(GlooGroup&&) noexcept;
  GlooGroup& operator=(GlooGroup&&) noexcept;
  ~GlooGroup();

  // Adds up the bin counts of each layer over the ranks, in one all-reduce: every rank then solves for the same bias, a
  // function of the step's tokens and not of how they were dealt out. The histograms were made with the same bias and
  // have the same shape on every rank. Source: systems.md §9.1.
  Status sum_counts(std::span<BiasHistogram> layers);

 private:
  explicit GlooGroup(c10::intrusive_ptr<c10d::ProcessGroup> group);
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace tandem::train
