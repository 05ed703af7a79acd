#include "train/distributed/gloo_group.h"

#include <ATen/ATen.h>

#include <exception>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "base/cat.h"

namespace tandem::train {

GlooGroup::GlooGroup(c10::intrusive_ptr<c10d::ProcessGroup> group) : group_(std::move(group)) {}
GlooGroup::GlooGroup(GlooGroup&&) noexcept = default;
GlooGroup& GlooGroup::operator=(GlooGroup&&) noexcept = default;
GlooGroup::~GlooGroup() = default;

Result<GlooGroup> GlooGroup::join(const std::string& meeting_path, const std::string& hostname, int rank,
                                  int num_ranks) {
  if (num_ranks < 1 || rank < 0 || rank >= num_ranks) {
    return Status::invalid(cat("rank: expected 0 to ", num_ranks - 1, ", found ", rank));
  }
  try {
    auto store = c10::make_intrusive<c10d::FileStore>(meeting_path, num_ranks);
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(hostname));
    return GlooGroup(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, num_ranks, options));
  } catch (const std::exception& error) {
    return Status::io(cat("rank ", rank, " of ", num_ranks, " cannot join through ", meeting_path, ": ", error.what()));
  }
}

Status GlooGroup::sum_counts(std::span<BiasHistogram> layers) {
  if (layers.empty()) return Status::ok();
  std::vector<at::Tensor> counts;
  for (BiasHistogram& layer : layers) counts.push_back(layer.counts());
  std::vector<at::Tensor> all = {at::stack(counts).cpu()};
  try {
    group_->allreduce(all)->wait();
  } catch (const std::exception& error) {
    return Status::io(cat("adding up expert counts over ranks: ", error.what()));
  }
  for (size_t i = 0; i < layers.size(); ++i) layers[i].counts().copy_(all[0].select(0, static_cast<int64_t>(i)));
  return Status::ok();
}

}  // namespace tandem::train
