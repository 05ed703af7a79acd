#include "weights/resident_weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/function_ref.h"
#include "tensor/int8_rows.h"
#include "tensor/mxfp4.h"
#include "weights/checkpoint.h"

namespace tandem {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kLine = 64;
// Copied by one task: long against its hand-out and its system call, short enough that little is held twice.
constexpr uint64_t kChunkBytes = uint64_t{2} << 20;

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// What a matrix becomes in the arena.
enum class Treatment { kCopy, kQuantize };
using VisitMatrix = FunctionRef<void(WeightView&, Treatment)>;

void visit_all(std::initializer_list<WeightView*> views, Treatment treatment, const VisitMatrix& visit) {
  for (WeightView* view : views) {
    if (!view->empty()) visit(*view, treatment);
  }
}

void visit_mlp(MlpWeights& mlp, Treatment trunk, const VisitMatrix& visit) {
  visit_all({&mlp.gate_proj, &mlp.up_proj, &mlp.down_proj}, trunk, visit);
}

void visit_attention(LayerWeights& layer, Treatment trunk, const VisitMatrix& visit) {
  if (auto* kda = std::get_if<KdaLayerWeights>(&layer.attention)) {
    visit_all({&kda->q_proj, &kda->k_proj, &kda->v_proj, &kda->g_proj, &kda->f_a_proj, &kda->b_proj, &kda->g_a_proj,
               &kda->f_b_proj, &kda->g_b_proj, &kda->o_proj},
              trunk, visit);
    return;
  }
  auto& mla = std::get<MlaLayerWeights>(layer.attention);
  visit_all({&mla.q_proj, &mla.q_a_proj, &mla.kv_a_proj, &mla.g_proj, &mla.q_b_proj}, trunk, visit);
  visit_all({&mla.kv_b_proj}, Treatment::kCopy, visit);
  visit_all({&mla.o_proj}, trunk, visit);
}

// In the order in which a step reads them.
void visit_matrices(ModelWeights& weights, const ResidentOptions& options, const VisitMatrix& visit) {
  const Treatment trunk = options.trunk == TrunkFormat::kInt8 ? Treatment::kQuantize : Treatment::kCopy;
  for (LayerWeights& layer : weights.layers) {
    visit_attention(layer, trunk, visit);
    if (auto* mlp = std::get_if<MlpWeights>(&layer.feed_forward)) {
      visit_mlp(*mlp, trunk, visit);
      continue;
    }
    auto& moe = std::get<MoeLayerWeights>(layer.feed_forward);
    visit_all({&moe.router}, Treatment::kCopy, visit);
    visit_all({&moe.latent_down}, trunk, visit);
    if (moe.shared_experts) visit_mlp(*moe.shared_experts, trunk, visit);
    for (ExpertWeights& expert : moe.experts) {
      if (options.experts) visit_all({&expert.w1, &expert.w3, &expert.w2}, Treatment::kCopy, visit);
    }
    visit_all({&moe.latent_up}, trunk, visit);
  }
  visit_all({&weights.lm_head}, trunk, visit);
}

uint64_t scale_bytes(const WeightView& view) {
  return static_cast<uint64_t>(view.total_bytes() - view.rows * view.row_bytes());
}
WeightView as_int8(WeightView view) {
  view.format = WeightFormat::kInt8;
  view.scale = nullptr;
  return view;
}
uint64_t arena_share(const WeightView& view) {
  return round_up(static_cast<uint64_t>(view.rows * view.row_bytes()), kLine) + round_up(scale_bytes(view), kLine);
}

// Rows of one matrix, or plain bytes, on their way into the arena.
struct Chunk {
  WeightView rows;             // to be quantised; empty: plain bytes
  std::byte* scale = nullptr;  // theirs
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t count = 0;  // source bytes
};

void move_chunk(const Chunk& chunk, const Checkpoint& checkpoint) {
  if (chunk.rows.empty()) {
    std::memcpy(chunk.to, chunk.from, chunk.count);
  } else {
    std::vector<float> row(static_cast<size_t>(chunk.rows.cols));
    const int64_t row_bytes = as_int8(chunk.rows).row_bytes();
    for (int64_t r = 0; r < chunk.rows.rows; ++r) {
      weight_row_to_f32(chunk.rows, r, row);
      const float scale = int8_quantize_row(row, reinterpret_cast<int8_t*>(chunk.to + r * row_bytes));
      std::memcpy(chunk.scale + r * static_cast<int64_t>(sizeof scale), &scale, sizeof scale);
    }
  }
  checkpoint.drop_pages({chunk.from, chunk.count});
}

// Places matrices one after the other in the arena and notes what has to be moved.
class Placer {
 public:
  explicit Placer(std::byte* arena) : next_(arena) {}

  void place(WeightView& view, Treatment treatment) {
    sources_.push_back(static_cast<const std::byte*>(view.data));
    if (treatment == Treatment::kQuantize) {
      quantize(view);
      return;
    }
    view.data = add(static_cast<const std::byte*>(view.data), static_cast<uint64_t>(view.rows * view.row_bytes()));
    if (view.scale == nullptr) return;
    view.scale =
        reinterpret_cast<const uint8_t*>(add(reinterpret_cast<const std::byte*>(view.scale), scale_bytes(view)));
  }
  // In the order of the file: a page that a neighbour's fault brought back is dropped with the neighbour.
  const std::vector<Chunk>& chunks() {
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.from < b.from; });
    return chunks_;
  }

  // The copies that binding made of matrices at odd addresses are not needed once those are placed.
  void free_realigned(ModelWeights& weights) {
    std::erase(sources_, static_cast<const std::byte*>(weights.embed_tokens.data));  // stays where it is
    std::sort(sources_.begin(), sources_.end());
    std::erase_if(weights.realigned, [&](const std::unique_ptr<std::byte[]>& copy) {
      return std::binary_search(sources_.begin(), sources_.end(), copy.get());
    });
  }

 private:
  void quantize(WeightView& view) {
    WeightView placed = as_int8(view);
    placed.data = next_;
    std::byte* const scales = next_ + round_up(static_cast<uint64_t>(placed.rows * placed.row_bytes()), kLine);
    placed.scale = reinterpret_cast<const uint8_t*>(scales);
    const int64_t each = std::max<int64_t>(static_cast<int64_t>(kChunkBytes) / view.row_bytes(), 1);
    for (int64_t row = 0; row < view.rows; row += each) {
      const WeightView rows = view.slice_rows(row, std::min(each, view.rows - row));
      chunks_.push_back({rows, scales + row * placed.scale_row_bytes(), static_cast<const std::byte*>(rows.data),
                         next_ + row * placed.row_bytes(), static_cast<uint64_t>(rows.rows * rows.row_bytes())});
    }
    next_ += arena_share(placed);
    view = placed;
  }

  std::byte* add(const std::byte* from, uint64_t count) {
    std::byte* const to = next_;
    next_ += round_up(count, kLine);
    for (uint64_t done = 0; done < count; done += kChunkBytes) {
      chunks_.push_back({WeightView{}, nullptr, from + done, to + done, std::min(kChunkBytes, count - done)});
    }
    return to;
  }

  std::byte* next_;
  std::vector<Chunk> chunks_;
  std::vector<const std::byte*> sources_;
};

}  // namespace

uint64_t ResidentWeights::bytes_needed(const ModelWeights& weights, const ResidentOptions& options) {
  uint64_t bytes = 0;
  // The visitor hands out mutable views; this one only reads them.
  visit_matrices(const_cast<ModelWeights&>(weights), options, [&](WeightView& view, Treatment treatment) {
    bytes += arena_share(treatment == Treatment::kQuantize ? as_int8(view) : view);
  });
  return round_up(bytes, kHugePage);
}

Result<ResidentWeights> ResidentWeights::place(const Checkpoint& checkpoint, const ResidentOptions& options,
                                               ThreadPool& pool, ModelWeights& weights) {
  ResidentWeights resident;
  resident.arena_bytes_ = bytes_needed(weights, options);
  if (resident.arena_bytes_ == 0) return resident;
  const uint64_t range = resident.arena_bytes_ + kHugePage;
  void* memory = ::mmap(nullptr, range, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status::exhausted(cat("resident weights: cannot map ", range, " bytes: ", std::strerror(errno)));
  }
  resident.base_ = static_cast<std::byte*>(memory);
  resident.mapped_bytes_ = range;
  const auto address = reinterpret_cast<uintptr_t>(memory);
  std::byte* const arena = resident.base_ + (round_up(address, kHugePage) - address);
  // Advice: without huge pages the weights are right and slower.
  (void)::madvise(arena, resident.arena_bytes_, MADV_HUGEPAGE);

  const bool shared = weights.lm_head.data == weights.embed_tokens.data && options.trunk == TrunkFormat::kStored;
  Placer placer(arena);
  visit_matrices(weights, options, [&](WeightView& view, Treatment treatment) { placer.place(view, treatment); });
  if (shared) weights.embed_tokens = weights.lm_head;
  const std::vector<Chunk>& chunks = placer.chunks();
  pool.parallel_for(static_cast<int64_t>(chunks.size()),
                    [&](int64_t i, int) { move_chunk(chunks[static_cast<size_t>(i)], checkpoint); });
  placer.free_realigned(weights);
  return resident;
}

ResidentWeights::ResidentWeights(ResidentWeights&& other) noexcept { *this = std::move(other); }

ResidentWeights& ResidentWeights::operator=(ResidentWeights&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(arena_bytes_, other.arena_bytes_);
  return *this;
}

ResidentWeights::~ResidentWeights() {
  if (base_ != nullptr) ::munmap(base_, mapped_bytes_);
}

}  // namespace tandem
