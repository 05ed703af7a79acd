// Where experts lie: one read where a file stores them together, several elsewhere, and the same bytes in any case.
#include "stream/read_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <random>

#include "kernels/kernel_table.h"
#include "stream/moved_file.h"
#include "stream/streamed_model.h"
#include "support/effort.h"
#include "weights/safetensors_writer.h"

namespace tandem {
namespace {

using test::file_bytes;
using test::RandomModel;
using test::StreamedModel;
using test::write_moved;

// A folder with the model's config and its tensors in one file, in an order of chance.
void write_shuffled(const RandomModel& model, const std::string& dir, uint64_t seed) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(model.dir());
  ASSERT_TRUE(checkpoint.is_ok());
  std::vector<int64_t> order;
  for (int64_t i = 0; i < checkpoint.value().num_tensors(); ++i) order.push_back(i);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  std::vector<TensorToWrite> tensors;
  for (const int64_t i : order) {
    const TensorEntry entry = checkpoint.value().tensor(i);
    tensors.push_back({{entry.name, entry.dtype, entry.shape}, checkpoint.value().data(entry)});
  }
  std::filesystem::copy_file(model.dir() + "/config.json", dir + "/config.json");
  const Status written = write_safetensors(dir + "/model.safetensors", tensors);
  ASSERT_TRUE(written.is_ok()) << written.message();
}

Result<ReadLayout> layout_of(const StreamedModel& streamed, const ExpertWeights& expert) {
  return ReadLayout::of(streamed.checkpoint(), std::array{expert.w1, expert.w3, expert.w2});
}

class ReadLayoutTest : public testing::Test {
 protected:
  ReadLayoutTest() : kernels_(make_kernel_table(detect_cpu_features(), std::nullopt).value()) {}

  template <class AnyModel>
  std::vector<float> run(const AnyModel& model, const std::vector<TokenId>& tokens) {
    std::vector<SequenceCache> caches;
    caches.push_back(model.new_cache());
    const Result<std::vector<float>> logits = test::run_together(exec_, model.model(), caches, {tokens}, 8, 4);
    EXPECT_TRUE(logits.is_ok()) << logits.status().message();
    return logits.is_ok() ? logits.value() : std::vector<float>();
  }
  static ExpertStore::Options few_slots() {
    ExpertStore::Options options;
    options.num_slots = 5;
    return options;
  }
  // The bytes of every tensor of every expert, read by its layout.
  static void expect_bytes(const StreamedModel& streamed, const RandomModel& resident) {
    ASSERT_EQ(streamed.checkpoint().num_shards(), 1);
    const std::string file = file_bytes(streamed.checkpoint().shard_path(0));
    for (size_t l = 0; l < streamed.weights().layers.size(); ++l) {
      const auto* moe = std::get_if<MoeLayerWeights>(&streamed.weights().layers[l].feed_forward);
      if (moe == nullptr) continue;
      const auto& expected = std::get<MoeLayerWeights>(resident.weights().layers[l].feed_forward);
      for (size_t e = 0; e < moe->experts.size(); ++e) {
        const Result<ReadLayout> layout = layout_of(streamed, moe->experts[e]);
        ASSERT_TRUE(layout.is_ok()) << layout.status().message();
        expect_expert(file, layout.value(), moe->experts[e], expected.experts[e]);
      }
    }
  }
  static void expect_expert(const std::string& file, const ReadLayout& layout, const ExpertWeights& mapped,
                            const ExpertWeights& expected) {
    std::vector<std::byte> memory(layout.slot_bytes + kDirectAlignment);
    std::byte* slot = memory.data();
    slot += direct_ceil(reinterpret_cast<uint64_t>(slot)) - reinterpret_cast<uint64_t>(slot);
    for (const ReadLayout::Extent& extent : layout.extents) {
      EXPECT_EQ(extent.offset % kDirectAlignment + extent.num_bytes % kDirectAlignment, 0u);
      std::memcpy(slot + extent.slot_offset, file.data() + extent.offset,
                  std::min<uint64_t>(extent.num_bytes, file.size() - extent.offset));
    }
    settle(layout, slot);
    ExpertWeights views = mapped;
    point_into(layout, slot, std::array{&views.w1, &views.w3, &views.w2});
    for (const auto& [view, like] :
         {std::pair{&views.w1, &expected.w1}, std::pair{&views.w2, &expected.w2}, std::pair{&views.w3, &expected.w3}}) {
      const auto bytes = static_cast<size_t>(like->rows * like->row_bytes());
      EXPECT_EQ(std::memcmp(view->data, like->data, bytes), 0);
      const uint64_t element = like->format == WeightFormat::kMxfp4 ? 1 : like->format == WeightFormat::kF32 ? 4 : 2;
      EXPECT_EQ(reinterpret_cast<uint64_t>(view->data) % element, 0u);
      if (like->scale == nullptr) continue;
      EXPECT_EQ(std::memcmp(view->scale, like->scale, static_cast<size_t>(like->rows * like->cols / 32)), 0);
    }
  }

  KernelTable kernels_;
  ThreadPool pool_{1};
  Arena arena_;
  ExecContext exec_{pool_, arena_, kernels_};
  test::TempFolder folder_;
};

TEST_F(ReadLayoutTest, AnExpertThatIsStoredTogetherIsOneRead) {
  for (const bool mxfp4 : {true, false}) {
    test::SmallShape shape;
    shape.mxfp4 = mxfp4;
    const RandomModel resident(shape, 1);
    StreamedModel streamed(resident.dir(), few_slots());
    for (const LayerWeights& layer : streamed.weights().layers) {
      const auto* moe = std::get_if<MoeLayerWeights>(&layer.feed_forward);
      if (moe == nullptr) continue;
      for (const ExpertWeights& expert : moe->experts) {
        const Result<ReadLayout> layout = layout_of(streamed, expert);
        ASSERT_TRUE(layout.is_ok());
        EXPECT_EQ(layout.value().extents.size(), 1u);
        EXPECT_EQ(layout.value().tensors.size(), mxfp4 ? 6u : 3u);
        const int64_t bytes = expert.w1.total_bytes() + expert.w2.total_bytes() + expert.w3.total_bytes();
        EXPECT_LE(layout.value().slot_bytes, static_cast<uint64_t>(bytes) + 2 * kDirectAlignment);
      }
    }
    expect_bytes(streamed, resident);
  }
}

TEST_F(ReadLayoutTest, ScatteredTensorsGiveTheSameLogits) {
  for (int64_t seed = 1; seed <= test::effort(4); ++seed) {
    test::SmallShape shape;
    shape.hidden = 96;
    shape.experts = 12;
    shape.mxfp4 = seed % 2 == 0;
    const RandomModel resident(shape, static_cast<uint64_t>(seed));
    const test::TempFolder folder;
    write_shuffled(resident, folder.path(), static_cast<uint64_t>(seed));
    StreamedModel streamed(folder.path(), few_slots());
    size_t most = 0;
    const auto& moe = std::get<MoeLayerWeights>(streamed.weights().layers[1].feed_forward);
    for (const ExpertWeights& expert : moe.experts) {
      most = std::max(most, layout_of(streamed, expert).value().extents.size());
    }
    EXPECT_GT(most, 1u);
    expect_bytes(streamed, resident);
    const auto tokens = test::random_tokens(20, resident.config().vocab_size, 3);
    EXPECT_EQ(run(streamed, tokens), run(resident, tokens));
  }
}

TEST_F(ReadLayoutTest, TensorsAtAddressesTheirTypeDoesNotAllowGiveTheSameLogits) {
  for (const std::optional<DType> stored : {std::optional<DType>(), std::optional<DType>(DType::kF32)}) {
    for (const uint64_t by : {1u, 2u, 3u, 4095u}) {
      test::SmallShape shape;
      shape.mxfp4 = false;
      shape.stored = stored;
      const RandomModel resident(shape, by);
      const test::TempFolder folder;
      write_moved(resident, folder.path(), by);
      StreamedModel streamed(folder.path(), few_slots());
      if (by % 2 == 1) expect_bytes(streamed, resident);
      const auto tokens = test::random_tokens(20, resident.config().vocab_size, 3);
      EXPECT_EQ(run(streamed, tokens), run(resident, tokens)) << by;
    }
  }
}

TEST_F(ReadLayoutTest, AnExpertOutsideTheFilesHasNoPlace) {
  const RandomModel resident({}, 2);
  StreamedModel streamed(resident.dir(), few_slots());
  ExpertWeights expert = std::get<MoeLayerWeights>(streamed.weights().layers[1].feed_forward).experts[0];
  expert.w2.data = &expert;
  EXPECT_EQ(layout_of(streamed, expert).status().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem
