#include "stream/trunk_stream.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {
namespace {

constexpr uint64_t kReadBytes = uint64_t{4} << 20;  // several reads of a large extent are in flight together

void add_mlp(MlpWeights& mlp, std::vector<WeightView*>& views) {
  for (WeightView* view : {&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}) views.push_back(view);
}

// The layer's matrices but for its router and its routed experts.
std::vector<WeightView*> matrices_of(LayerWeights& layer) {
  std::vector<WeightView*> views;
  if (auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
    for (WeightView* view : {&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->f_a_proj, &kda->f_b_proj, &kda->b_proj,
                             &kda->g_proj, &kda->g_a_proj, &kda->g_b_proj, &kda->o_proj}) {
      views.push_back(view);
    }
  } else {
    auto& mla = std::get<MlaLayerWeights>(layer.attention);
    for (WeightView* view :
         {&mla.q_proj, &mla.q_a_proj, &mla.q_b_proj, &mla.kv_a_proj, &mla.kv_b_proj, &mla.g_proj, &mla.o_proj}) {
      views.push_back(view);
    }
  }
  if (auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) {
    add_mlp(*mlp, views);
    return views;
  }
  auto& moe = std::get<MoeLayerWeights>(layer.feed_forward);
  views.push_back(&moe.latent_down);
  views.push_back(&moe.latent_up);
  if (moe.shared_experts) add_mlp(*moe.shared_experts, views);
  return views;
}

std::vector<std::string> shard_paths(const Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (uint32_t s = 0; s < checkpoint.num_shards(); ++s) paths.push_back(checkpoint.shard_path(s));
  return paths;
}

}  // namespace

Result<std::vector<TrunkStream::Section>> TrunkStream::sections_of(const Checkpoint& checkpoint,
                                                                   ModelWeights& weights) {
  std::vector<std::vector<WeightView*>> matrices;
  for (LayerWeights& layer : weights.layers) matrices.push_back(matrices_of(layer));
  matrices.push_back({&weights.lm_head});
  std::vector<Section> sections;
  for (const std::vector<WeightView*>& views : matrices) {
    Section& section = sections.emplace_back();
    for (WeightView* view : views) {
      // What is not there, or was copied into memory because the file has it misaligned, is not read.
      if (view->empty() || !checkpoint.place_of(view->data)) continue;
      section.views.push_back(view);
      section.mapped.push_back(*view);
    }
    Result<ReadLayout> layout = ReadLayout::of(checkpoint, section.mapped);
    if (!layout.is_ok()) return layout.status();
    section.layout = std::move(layout).value();
  }
  return sections;
}

Result<TrunkStream::Sizes> TrunkStream::sizes(const Checkpoint& checkpoint, ModelWeights& weights) {
  const Result<std::vector<Section>> sections = sections_of(checkpoint, weights);
  if (!sections.is_ok()) return sections.status();
  Sizes sizes;
  for (const Section& section : sections.value()) {
    sizes.streamed_bytes += section.layout.slot_bytes;
    sizes.buffer_bytes = std::max(sizes.buffer_bytes, section.layout.slot_bytes);
  }
  return sizes;
}

Result<std::unique_ptr<TrunkStream>> TrunkStream::create(const Checkpoint& checkpoint, ModelWeights& weights,
                                                         const DirectReaderOptions& options) {
  Result<std::vector<Section>> sections = sections_of(checkpoint, weights);
  if (!sections.is_ok()) return sections.status();
  uint64_t bytes = kDirectAlignment;  // also when every matrix is a copy in memory, and nothing is read
  for (const Section& section : sections.value()) bytes = std::max(bytes, section.layout.slot_bytes);
  Result<SlotMemory> memory = SlotMemory::create(2, bytes);
  if (!memory.is_ok()) return memory.status();
  Result<std::unique_ptr<DirectReader>> reader = DirectReader::open(shard_paths(checkpoint), options);
  if (!reader.is_ok()) return reader.status();
  return std::unique_ptr<TrunkStream>(
      new TrunkStream(checkpoint, std::move(sections).value(), std::move(memory).value(), std::move(reader).value()));
}

TrunkStream::TrunkStream(const Checkpoint& checkpoint, std::vector<Section> sections, SlotMemory memory,
                         std::unique_ptr<DirectReader> reader)
    : checkpoint_(checkpoint), sections_(std::move(sections)), memory_(std::move(memory)), reader_(std::move(reader)) {}

TrunkStream::~TrunkStream() {
  for (size_t buffer = 0; buffer < buffers_.size(); ++buffer) give_back_views(buffer);
}

std::string TrunkStream::name_of(size_t section) const {
  return section + 1 == sections_.size() ? std::string("the head") : cat("layer ", section);
}

Status TrunkStream::enter(int64_t layer) {
  const auto wanted = static_cast<size_t>(layer);
  TANDEM_CHECK(wanted < sections_.size(), "a layer of the model, or its head");
  size_t here = 0;
  if (buffers_[1].section == wanted) here = 1;
  if (buffers_[here].section != wanted) {
    // Out of turn: the first step, or one after a failure. What is under way ends first.
    TANDEM_RETURN_IF_ERROR(drain(here));
    start(here, wanted);
  }
  if (const Status status = finish(here); !status.is_ok()) {
    if (!buffers_[here].lost) buffers_[here] = Buffer{};
    return status;
  }
  const size_t next = (wanted + 1) % sections_.size();
  if (buffers_[1 - here].section != next) {
    TANDEM_RETURN_IF_ERROR(drain(1 - here));
    start(1 - here, next);
  }
  return Status::ok();
}

void TrunkStream::start(size_t index, size_t section) {
  Buffer& buffer = buffers_[index];
  give_back_views(index);
  buffer = Buffer{};
  buffer.section = section;
  for (const ReadLayout::Extent& extent : sections_[section].layout.extents) {
    for (uint64_t begin = 0; begin < extent.num_bytes; begin += kReadBytes) {
      const uint64_t count = std::min(kReadBytes, extent.num_bytes - begin);
      const uint64_t tag = static_cast<uint64_t>(buffer.reads_left) * 2 + index;
      ++buffer.reads_left;
      reader_->submit({extent.shard, extent.offset + begin,
                       memory_.slot(static_cast<int64_t>(index)).subspan(extent.slot_offset + begin, count), tag});
    }
  }
}

void TrunkStream::give_back_views(size_t index) {
  Buffer& buffer = buffers_[index];
  if (!buffer.section || !buffer.ready) return;
  Section& section = sections_[*buffer.section];
  for (size_t i = 0; i < section.views.size(); ++i) *section.views[i] = section.mapped[i];
  buffer.ready = false;
}

void TrunkStream::handle_completions() {
  for (ReadCompletion& completion : done_) {
    Buffer& buffer = buffers_[completion.tag % 2];
    --buffer.reads_left;
    buffer.lost = buffer.lost || completion.memory_lost;
    if (!completion.status.is_ok() && buffer.status.is_ok()) buffer.status = std::move(completion.status);
  }
}

// Every read into the buffer has ended, and it may be used for others.
Status TrunkStream::drain(size_t index) {
  Buffer& buffer = buffers_[index];
  while (buffer.reads_left > 0) {
    done_.clear();
    reader_->wait(done_);
    handle_completions();
  }
  if (!buffer.lost) return Status::ok();
  return Status::io(cat("a buffer of layers was lost to a drive that did not answer: ", buffer.status.message()));
}

Status TrunkStream::finish(size_t index) {
  Buffer& buffer = buffers_[index];
  if (buffer.ready) return Status::ok();
  Section& section = sections_[*buffer.section];
  (void)drain(index);
  if (!buffer.status.is_ok()) return Status::io(cat(name_of(*buffer.section), ": ", buffer.status.message()));
  std::byte* memory = memory_.slot(static_cast<int64_t>(index)).data();
  settle(section.layout, memory);
  const uint64_t hash = content_hash(section.layout, memory);
  if (section.hash != 0 && section.hash != hash) {
    return Status::io(cat(name_of(*buffer.section), " (", checkpoint_.shard_path(section.layout.extents[0].shard),
                          "): its bytes differ from those that were read before"));
  }
  section.hash = hash;
  point_into(section.layout, memory, section.views);
  buffer.ready = true;
  return Status::ok();
}

}  // namespace tandem
