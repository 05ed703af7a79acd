// The numbers themselves, against the engine's other ways to the same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>

#include "engine/score.h"
#include "evaluate/child_process.h"
#include "evaluate/compressors.h"
#include "evaluate/greedy_batch.h"
#include "evaluate/small_model.h"
#include "evaluate/text_score.h"

namespace tandem {
namespace {

using test::SmallModel;
using ::testing::HasSubstr;

const auto no_progress = [](int64_t, int64_t) {};

std::string prose(size_t bytes) {
  std::string text;
  std::mt19937 generator(9);
  while (text.size() < bytes) {
    for (size_t n = 2 + generator() % 8; n > 0; --n) text += static_cast<char>('a' + generator() % 26);
    text += generator() % 9 == 0 ? ".\n" : " ";
  }
  text.resize(bytes);
  return text;
}

std::vector<TokenId> random_tokens(int64_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.emplace_back(static_cast<int32_t>(generator() % 1024));
  return tokens;
}

// Batched, with sequences coming and going, ≡ one Generator a prompt.
TEST(GreedyBatch, EveryReplyIsTheGenerators) {
  LoadedModel& engine = SmallModel::get().engine();
  std::vector<GreedyTask> tasks;
  for (int i = 0; i < 9; ++i)
    tasks.push_back({random_tokens(1 + i * 13 % 40, static_cast<uint32_t>(i)), 1 + i * 7 % 20});
  // A token that some replies reach, so that sequences stop at different times.
  std::vector<std::vector<TokenId>> wanted;
  GenerateRequest request;
  request.sampling.temperature = 0;
  request.ignore_eos = true;
  request.prefill_chunk = 16;
  request.prompt = tasks[2].prompt;
  request.max_tokens = 5;
  const TokenId stop = Generator(engine).run(request, [](TokenId) { return true; }).value().tokens.back();
  request.ignore_eos = false;
  request.stop_tokens = {stop};
  std::vector<FinishReason> reasons;
  for (const GreedyTask& task : tasks) {
    request.prompt = task.prompt;
    request.max_tokens = task.max_tokens;
    GenerateResult result = Generator(engine).run(request, [](TokenId) { return true; }).value();
    wanted.push_back(result.tokens);
    reasons.push_back(result.finish_reason);
  }
  EXPECT_THAT(reasons, ::testing::Contains(FinishReason::kStop));
  EXPECT_THAT(reasons, ::testing::Contains(FinishReason::kLength));
  for (const int64_t max_sequences : {1, 4, 16}) {
    for (const int64_t max_cached_tokens : {1, 100, 100000}) {
      const GreedyBatchOptions options{max_sequences, max_cached_tokens, 16, {stop}};
      int64_t last_done = 0;
      const auto replies = decode_greedily(engine, tasks, options, [&](int64_t done, int64_t total) {
        EXPECT_EQ(done, ++last_done);
        EXPECT_EQ(total, 9);
      });
      ASSERT_TRUE(replies.is_ok()) << replies.status().message();
      for (size_t i = 0; i < tasks.size(); ++i) {
        EXPECT_EQ(replies.value()[i].tokens, wanted[i]) << i << " of batches of " << max_sequences;
        EXPECT_EQ(replies.value()[i].finish_reason, reasons[i]) << i;
      }
      EXPECT_EQ(last_done, 9);
    }
  }
  EXPECT_TRUE(decode_greedily(engine, {}, {}, no_progress).value().empty());
}

// One window over the whole text is the engine's own score of its tokens, and one uniform guess in front.
TEST(TextScore, OneWindowIsTheEnginesScore) {
  LoadedModel& engine = SmallModel::get().engine();
  const std::string text = prose(700);
  const Tokenizer& tokenizer = SmallModel::get().tokenizer();
  const std::vector<ScorePrompt> prompts = {{"a", tokenizer.encode_text(text)}};
  const ScoreResult expected = score(engine, prompts, {}, no_progress).value();
  const TextScore found = score_text(engine, tokenizer, text, {4096, 512, 64}, no_progress).value();
  EXPECT_EQ(found.bytes, 700);
  EXPECT_EQ(found.tokens, static_cast<int64_t>(prompts[0].tokens.size()));
  const double bits = expected.prompts[0].negative_log_likelihood / std::numbers::ln2 + std::log2(1024.0);
  EXPECT_NEAR(found.bits, bits, 1e-5 * bits);
  EXPECT_NEAR(found.bits_per_byte(), bits / 700, 1e-4);
}

// Overlapping windows: the same sum made by hand from the engine's logits of every window.
TEST(TextScore, WindowsScoreEveryTokenOnce) {
  LoadedModel& engine = SmallModel::get().engine();
  const Tokenizer& tokenizer = SmallModel::get().tokenizer();
  const std::string text = prose(260);
  const std::vector<TokenId> ids = tokenizer.encode_text(text);
  const auto total = static_cast<int64_t>(ids.size());
  for (const auto& [window, context] : {std::pair<int64_t, int64_t>{50, 20}, {31, 30}, {2, 1}, {64, 1}, {total, 5}}) {
    double bits = 10;  // log2 of 1024, for the first token
    int64_t scored = 1;
    for (int64_t begin = 0; scored < total; begin += window - context) {
      const int64_t end = std::min(total, begin + window);
      const std::vector<ScorePrompt> prompts = {{"w", {ids.begin() + begin, ids.begin() + end}}};
      const ScoreResult result = score(engine, prompts, {}, no_progress).value();
      const auto& logits = std::get<std::vector<float>>(result.tensors[0].values);
      for (int64_t i = scored; i < end; ++i) {
        double sum = 0;
        const float* row = logits.data() + (i - 1 - begin) * 1024;
        for (int64_t v = 0; v < 1024; ++v) sum += std::exp(static_cast<double>(row[v]));
        bits += (std::log(sum) - row[ids[static_cast<size_t>(i)].value]) / std::numbers::ln2;
      }
      scored = end;
    }
    for (const int64_t chunk : {7, 256}) {
      int64_t last = 0;
      const auto found = score_text(engine, tokenizer, text, {window, context, chunk}, [&](int64_t done, int64_t all) {
        EXPECT_GE(done, last);
        EXPECT_EQ(all, total);
        last = done;
      });
      ASSERT_TRUE(found.is_ok()) << found.status().message();
      EXPECT_NEAR(found.value().bits, bits, 1e-5 * bits) << window << " " << context << " " << chunk;
      EXPECT_EQ(last, total);
    }
  }
}

TEST(TextScore, ShortTexts) {
  LoadedModel& engine = SmallModel::get().engine();
  const Tokenizer& tokenizer = SmallModel::get().tokenizer();
  EXPECT_EQ(score_text(engine, tokenizer, "", {}, no_progress).value().bits_per_byte(), 0);
  EXPECT_EQ(score_text(engine, tokenizer, "a", {}, no_progress).value().bits, 10);
}

TEST(PrefillIsDecode, HoldsOnARandomModel) {
  LoadedModel& engine = SmallModel::get().engine();
  const std::vector<TokenId> tokens = random_tokens(150, 4);
  const auto law = check_prefill_is_decode(engine, tokens, 64);
  ASSERT_TRUE(law.is_ok()) << law.status().message();
  EXPECT_EQ(law.value().positions, 150);
  EXPECT_EQ(law.value().same_best, 150);
  EXPECT_GT(law.value().max_difference, 0);  // two different algorithms
  EXPECT_LT(law.value().max_difference, 1e-3);
}

TEST(ChildProcess, BytesInBytesOut) {
  std::string bytes(3'000'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 251);
  const auto copied = run_child({"cat"}, bytes);
  ASSERT_TRUE(copied.is_ok()) << copied.status().message();
  EXPECT_EQ(copied.value().exit_code, 0);
  EXPECT_TRUE(copied.value().out == bytes);
  // No shell reads the arguments.
  EXPECT_EQ(run_child({"printf", "%s", "$(id) `id` ; * \"'"}, "").value().out, "$(id) `id` ; * \"'");
  const ChildResult failed = run_child({"sh", "-c", "echo oops >&2; exit 3"}, "").value();
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_EQ(failed.err, "oops\n");
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}, "").value().exit_code, 128 + 9);
  const auto missing = run_child({"no-such-program-here"}, "");
  ASSERT_FALSE(missing.is_ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("no-such-program-here"));
}

// What the programs write is what their own tools take back.
TEST(Compressors, SizesAreOfTheSameBytes) {
  const std::string text = prose(20'000);
  const std::vector<CompressedSize> sizes = compress_with_programs(text);
  ASSERT_EQ(sizes.size(), 2u);
  EXPECT_EQ(sizes[0].command, "xz -9e");
  EXPECT_EQ(sizes[1].command, "zstd -19 --long");
  for (const CompressedSize& size : sizes) {
    if (!size.bytes) {
      EXPECT_THAT(size.reason, HasSubstr("no such program"));
      continue;
    }
    // Letters drawn from 26 hold 4.7 bits each: no program goes much below, and both see that it is not random bytes.
    EXPECT_GT(*size.bytes, 9'000u) << size.command;
    EXPECT_LT(*size.bytes, 16'000u) << size.command;
  }
}

}  // namespace
}  // namespace tandem
