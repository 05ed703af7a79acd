// Bad input of the trainer's model, and what export reads from it.
#include "train/modules/train_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/golden.h"
#include "train/small_models.h"

namespace tandem::train {
namespace {

using ::testing::HasSubstr;

Status layout_status(std::vector<int64_t> cu_seqlens, int64_t chunk_size) {
  return make_sequence_layout(cu_seqlens, chunk_size, at::kCPU).status();
}

TEST(SequenceLayout, NamesWhatIsWrong) {
  EXPECT_THAT(layout_status({}, 16).message(), HasSubstr("begin with 0"));
  EXPECT_THAT(layout_status({1, 4}, 16).message(), HasSubstr("begin with 0"));
  EXPECT_THAT(layout_status({0, 4, 3}, 16).message(), HasSubstr("do not fall"));
  EXPECT_THAT(layout_status({0, 4}, 24).message(), HasSubstr("found 24"));
  EXPECT_THAT(layout_status({0, 4}, 8).message(), HasSubstr("found 8"));
  EXPECT_TRUE(layout_status({0}, 16).is_ok());
}

// Every row is in one chunk and in one bucket, at the place that the inverse names.
TEST(SequenceLayout, PlacesAreInverse) {
  const std::vector<int64_t> bounds = {0, 0, 70, 71, 120, 120, 136};
  const SequenceLayout layout = make_sequence_layout(bounds, 16, at::kCPU).value();
  const at::Tensor rows = at::arange(136, at::kLong);
  EXPECT_TRUE(layout.chunk_rows.index_select(0, layout.row_in_chunks).equal(rows));
  std::vector<at::Tensor> buckets;
  for (const DocumentBucket& bucket : layout.buckets) {
    EXPECT_EQ(bucket.rows.size(0), bucket.num_documents * bucket.length);
    buckets.push_back(bucket.rows);
  }
  EXPECT_TRUE(at::cat(buckets).index_select(0, layout.row_in_buckets).equal(rows));
  EXPECT_EQ(layout.active_documents, (std::vector<int64_t>{4, 2, 2, 2, 1}));
  EXPECT_TRUE(layout.document_of_rank.index_select(0, layout.rank_of_document).equal(at::arange(6, at::kLong)));
}

TEST(TrainModel, NoRowsGiveNoRows) {
  for (const ModelConfig& config : {test::small_k3(), test::small_kimi_linear()}) {
    const TrainModel model = TrainModel::random(config, 1, InitStyle::kTraining);
    const std::vector<int64_t> bounds = {0, 0};
    const SequenceLayout layout = make_sequence_layout(bounds, 16, at::kCPU).value();
    const at::Tensor logits = model.forward(at::empty({0}, at::kLong), layout, {});
    EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{0, config.vocab_size}));
  }
}

TEST(TrainModel, RefusesACheckpointOfAnotherShape) {
  const std::string dir = test::data_path("golden/k3-tiny");
  ModelConfig config = load_model_config(dir).value();
  const Checkpoint checkpoint = Checkpoint::open(dir).value();
  config.kv_lora_rank += 1;
  const Result<TrainModel> model = TrainModel::load(checkpoint, config);
  ASSERT_FALSE(model.is_ok());
  EXPECT_THAT(model.status().message(), HasSubstr("kv_a_layernorm"));
}

// One value for every text tensor of the configuration, in its shape; experts are slices of their stack.
TEST(TrainModel, ReleasedTensors) {
  const ModelConfig config = test::small_k3();
  const TrainModel model = TrainModel::random(config, 1, InitStyle::kTraining);
  int64_t released = 0, elements = 0, held = 0;
  model.for_each_released([&](const ExpectedTensor& tensor, const at::Tensor& value) {
    ++released;
    elements += value.numel();
    EXPECT_FALSE(value.requires_grad());
    if (tensor.role == TensorRole::kKdaALog) {
      EXPECT_EQ(value.numel(), config.kda_num_heads);
    } else {
      EXPECT_EQ(value.sizes(), at::IntArrayRef(tensor.shape.data(), tensor.shape.size())) << tensor.name;
    }
    if (tensor.name == "language_model.model.layers.1.block_sparse_moe.experts.4.w2.weight") {
      const Parameter* stack = model.find("language_model.model.layers.1.block_sparse_moe.experts.*.w2.weight");
      ASSERT_NE(stack, nullptr);
      EXPECT_TRUE(stack->value.detach().select(0, 4).is_same_size(value));
      EXPECT_EQ(stack->value.detach().select(0, 4).data_ptr(), value.data_ptr());
    }
  });
  for (const Parameter& p : model.parameters()) held += p.value.numel();
  EXPECT_EQ(elements, held);
  EXPECT_EQ(released, static_cast<int64_t>(model.parameters().size()) + 4 * 3 * (config.num_experts - 1));
}

}  // namespace
}  // namespace tandem::train
