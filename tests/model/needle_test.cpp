// A prompt far longer than a prefill chunk: the state handed from chunk to chunk, 64 times over, is the state that
// token-at-a-time decode builds, and what stands at the beginning of the prompt still reaches the end.
#include <gtest/gtest.h>

#include "model/random_model.h"

namespace tandem {
namespace {

using test::all_close;
using test::all_equal_bits;
using test::BackendFixture;
using test::max_abs;
using test::random_tokens;
using test::RandomModel;
using test::run_chunks;
using test::SmallShape;

constexpr int64_t kTokens = 4096;
constexpr int64_t kLast = 128;

SmallShape narrow_shape(bool k3) {
  SmallShape shape;
  shape.k3 = k3;
  shape.layers = 4;
  shape.mla_layers = {2};
  shape.hidden = 32;
  shape.vocab = 64;
  shape.kda_heads = shape.mla_heads = 1;
  shape.kda_head_dim = 16;
  shape.q_lora = 0;
  shape.rank = 16;
  shape.nope = shape.v = 8;
  shape.rope = 8;
  shape.experts = 4;
  shape.topk = 2;
  shape.lower_bound = k3;  // K3's bounded decay, and Kimi-Linear's softplus
  shape.block = k3 ? 2 : 0;
  return shape;
}

class Needle : public ::testing::TestWithParam<bool> {
 protected:
  Needle() : backend_(available_backends(detect_cpu_features()).back()), model_(narrow_shape(GetParam()), 31) {}

  std::vector<float> last_logits(const std::vector<TokenId>& tokens, int64_t chunk, StepMode mode) {
    SequenceCache cache = model_.new_cache();
    const auto rows = run_chunks(backend_.ctx(), model_, cache, tokens, chunk, mode);
    return std::vector<float>(rows.end() - kLast * model_.config().vocab_size, rows.end());
  }

  BackendFixture backend_;
  RandomModel model_;
};

TEST_P(Needle, EveryChunkSizeIsTheTokenAtATimeRun) {
  const auto tokens = random_tokens(kTokens, model_.config().vocab_size, 32);
  const auto decode = last_logits(tokens, 1, StepMode::kDecode);
  const auto whole = last_logits(tokens, kTokens, StepMode::kPrefill);
  const float tolerance = 4e-5f * max_abs(decode);  // laws_test.cpp
  EXPECT_TRUE(all_close(whole, decode, tolerance));
  for (const int64_t chunk : {64, 256}) {
    EXPECT_TRUE(all_equal_bits(last_logits(tokens, chunk, StepMode::kPrefill), whole)) << "chunk " << chunk;
  }
  EXPECT_TRUE(all_close(last_logits(tokens, 100, StepMode::kPrefill), decode, tolerance)) << "off the KDA grid";

  // The needle: one other token at position 20, 4,000 tokens and 62 chunks before the rows compared.
  auto changed = tokens;
  changed[20] = TokenId((tokens[20].value + 1) % static_cast<int32_t>(model_.config().vocab_size));
  const auto needle = last_logits(changed, 64, StepMode::kPrefill);
  EXPECT_FALSE(all_close(needle, whole, 4 * tolerance)) << "the beginning of the prompt is lost";
  EXPECT_TRUE(all_close(needle, last_logits(changed, 1, StepMode::kDecode), tolerance));
}

INSTANTIATE_TEST_SUITE_P(Families, Needle, ::testing::Bool(),
                         [](const auto& test) { return std::string(test.param ? "k3" : "kimi_linear"); });

}  // namespace
}  // namespace tandem
