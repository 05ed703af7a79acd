// The self-test of a checkpoint: passes on the golden models, and names what it is made to find.
#include "engine/self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "engine/golden_backends.h"
#include "engine/golden_logits.h"
#include "engine/poisoned_model.h"
#include "engine/test_run.h"
#include "support/golden.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::TempFolder;
using testing::HasSubstr;

std::unique_ptr<LoadedModel> load(const std::string& dir, std::optional<KernelBackend> backend = std::nullopt) {
  LoadOptions options;
  options.kernels = backend;
  options.num_threads = 2;
  auto model = LoadedModel::load(dir, options);
  EXPECT_TRUE(model.is_ok()) << model.status().message();
  return std::move(model).value();
}

std::string golden_dir(const std::string& model) { return test::data_path(cat("golden/", model)); }

std::map<std::string, DoctorCheck> run(LoadedModel& model, const SelfTestOptions& options = {}) {
  std::map<std::string, DoctorCheck> checks;
  run_self_test(model, options, [&](DoctorCheck check) {
    EXPECT_EQ(check.area, "self_test");
    checks.insert_or_assign(check.name, check);
  });
  return checks;
}

double value_of(const DoctorCheck& check, std::string_view name) {
  for (const auto& [key, value] : check.values) {
    if (key != name) continue;
    if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
    return std::get<double>(value);
  }
  ADD_FAILURE() << check.name << " has no " << name;
  return 0;
}

TEST(SelfTestTokens, AreFixedAndSpreadOverTheVocabulary) {
  const std::vector<TokenId> tokens = self_test_tokens(163840, 24);
  EXPECT_EQ(tokens, self_test_tokens(163840, 24));
  EXPECT_EQ(tokens[0].value, 101258);  // 163840 · 0.618034
  std::vector<int32_t> ids;
  for (const TokenId token : tokens) ids.push_back(token.value);
  std::sort(ids.begin(), ids.end());
  EXPECT_GE(ids.front(), 0);
  EXPECT_LT(ids.back(), 163840);
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_LT(ids[i] - ids[i - 1], 2 * 163840 / 24 + 1);
  for (const TokenId token : self_test_tokens(1, 5)) EXPECT_EQ(token.value, 0);
}

class SelfTestOfGoldens : public ::testing::TestWithParam<std::tuple<std::string, KernelBackend>> {};

// The golden file here is one that other implementations made: tests/data/golden/README.md.
TEST_P(SelfTestOfGoldens, EveryCheckPasses) {
  const auto& [name, backend] = GetParam();
  const auto model = load(golden_dir(name), backend);
  SelfTestOptions options;
  options.golden_path = golden_dir(name) + "/expected.safetensors";
  const auto checks = run(*model, options);
  for (const char* check : {"finite", "chunks", "batch", "decode", "golden"}) {
    ASSERT_TRUE(checks.contains(check)) << check;
    EXPECT_EQ(checks.at(check).verdict, Verdict::kOk) << check << ": " << checks.at(check).message;
  }
  EXPECT_EQ(value_of(checks.at("decode"), "rows_compared"), 24);
  // p1, p37 and p300 in the file's order: the last of them has its last eight rows.
  EXPECT_EQ(value_of(checks.at("golden"), "rows_compared"), 37);
  // No looser than what the golden's own tolerance is for.
  EXPECT_LE(value_of(checks.at("golden"), "tolerance"), 2e-3);
  const DoctorCheck& reference = checks.at("reference");
  if (backend == KernelBackend::kRef) {
    EXPECT_EQ(reference.verdict, Verdict::kSkipped);
  } else {
    EXPECT_EQ(reference.verdict, Verdict::kOk) << reference.message;
    EXPECT_EQ(value_of(reference, "rows_compared"), 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SelfTestOfGoldens, test::golden_models_on_every_backend(),
                         test::golden_backend_name);

TEST(SelfTest, ADamagedWeightIsFound) {
  const std::vector<TokenId> tokens = self_test_tokens(384, 24);
  const test::PoisonedModel poisoned("k3-tiny", tokens[20].value);
  const auto model = load(poisoned.dir());
  const auto checks = run(*model);
  EXPECT_EQ(checks.at("finite").verdict, Verdict::kFailed);
  EXPECT_THAT(checks.at("finite").message, HasSubstr("is nan"));
  EXPECT_EQ(checks.at("decode").verdict, Verdict::kFailed) << checks.at("decode").message;
}

// A golden file of another model of the same shape: as if a shard had been exchanged.
TEST(SelfTest, AGoldenFileOfOtherWeightsFails) {
  const TempFolder folder;
  const std::string dir = folder.path("model");
  std::filesystem::copy(golden_dir("k3-tiny"), dir);
  SelfTestOptions options;
  {
    const auto model = load(dir);
    EXPECT_EQ(run(*model).at("golden").verdict, Verdict::kSkipped);
    ASSERT_TRUE(write_self_test_golden(*model, options, dir + "/golden_logits.safetensors").is_ok());
    const DoctorCheck same = run(*model).at("golden");
    EXPECT_EQ(same.verdict, Verdict::kOk) << same.message;
    EXPECT_EQ(value_of(same, "rows_compared"), 8);
    EXPECT_EQ(value_of(same, "largest_difference"), 0);
  }
  // One bit: the sign of one weight.
  const std::string shard = dir + "/model-00002-of-00002.safetensors";
  std::string bytes = test::read_text(shard);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  const auto& weight = header.at("language_model.model.layers.5.input_layernorm.weight");
  ASSERT_EQ(weight["dtype"], "BF16");
  char& sign = bytes[8 + header_bytes + weight["data_offsets"][0].get<uint64_t>() + 1];
  sign = static_cast<char>(sign ^ 0x80);
  std::ofstream(shard, std::ios::binary | std::ios::trunc) << bytes;
  const auto model = load(dir);
  const DoctorCheck other = run(*model).at("golden");
  EXPECT_EQ(other.verdict, Verdict::kFailed) << other.message;
}

TEST(SelfTest, ScoreOutputWithItsPromptsBesideIsAGoldenFile) {
  const TempFolder folder;
  const auto model = load(golden_dir("kimi-linear-tiny"));
  const std::vector<TokenId> tokens = {TokenId(5), TokenId(9), TokenId(300)};
  TestRunOptions options;
  auto made = run_test_tokens(*model, tokens, options);
  ASSERT_TRUE(made.is_ok());
  const std::string path = folder.path("golden.safetensors");
  GoldenPrompt prompt{"a", tokens, std::move(made).value()};
  ASSERT_TRUE(write_golden_logits(path, {prompt}).is_ok());
  // Without the ids, as `tandem score` writes it: the header's name of that tensor becomes another.
  std::string bytes = test::read_text(path);
  const size_t at = bytes.find("\"a.ids\"");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 7, "\"a.idz\"");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  const auto alone = read_golden_logits(path, 320);
  ASSERT_FALSE(alone.is_ok());
  EXPECT_THAT(alone.status().message(), HasSubstr("its prompt is missing"));
  folder.write("golden.json", R"({"prompts":[{"id":"a","tokens":[5,9,300]}]})");
  SelfTestOptions test;
  test.golden_path = path;
  EXPECT_EQ(run(*model, test).at("golden").verdict, Verdict::kOk);
  // A prompt of another length has too few rows for the logits.
  folder.write("golden.json", R"({"prompts":[{"id":"a","tokens":[5,9]}]})");
  const DoctorCheck wrong = run(*model, test).at("golden");
  EXPECT_EQ(wrong.verdict, Verdict::kFailed);
  EXPECT_THAT(wrong.message, HasSubstr("a.logits"));
}

class CompareRuns : public ::testing::Test {
 protected:
  CompareRuns() : model_(load(golden_dir("k3-tiny"))) {
    TestRunOptions options;
    options.keep_router_reads = true;
    auto run = run_test_tokens(*model_, self_test_tokens(384, 24), options);
    EXPECT_TRUE(run.is_ok());
    run_ = std::move(run).value();
  }
  std::unique_ptr<LoadedModel> model_;
  TestRun run_;
};

TEST_F(CompareRuns, ADifferenceBeyondRoundingIsNamed) {
  TestRun other = run_;
  const RunDifference same = compare_runs(*model_, run_, other);
  EXPECT_EQ(same.worst, 0);
  EXPECT_EQ(same.rows_compared, 24);
  EXPECT_TRUE(same.is_within() && same.route_is_tie && same.route_difference.empty());
  other.logits[static_cast<size_t>(3 * 384 + 17)] += static_cast<float>(same.tolerance) * 1.5f;
  const RunDifference moved = compare_runs(*model_, run_, other);
  EXPECT_FALSE(moved.is_within());
  EXPECT_THAT(moved.where, HasSubstr("row 3, logit 17"));
  EXPECT_THAT(*find_bit_difference(run_, other), HasSubstr("row 3: logit 17"));
  other.logits[static_cast<size_t>(5 * 384)] = NAN;
  EXPECT_FALSE(compare_runs(*model_, run_, other).is_within());
  EXPECT_THAT(*find_non_finite(other), HasSubstr("row 5: logit 0"));
}

// Experts that are not near a tie: a fault of the router, not rounding. The rows before it are still compared.
TEST_F(CompareRuns, AnotherExpertMustBeATie) {
  TestRun other = run_;
  auto& [layer, ids] = *other.routes.begin();
  const auto k = ids.size() / 24;
  int32_t unused = 0;
  const auto row = ids.begin() + static_cast<int64_t>(7 * k);
  while (std::find(row, row + static_cast<int64_t>(k), unused) != row + static_cast<int64_t>(k)) ++unused;
  *row = unused;
  std::sort(row, row + static_cast<int64_t>(k));
  const RunDifference difference = compare_runs(*model_, run_, other);
  EXPECT_EQ(difference.rows_compared, 7);
  EXPECT_FALSE(difference.route_is_tie) << difference.route_difference;
  EXPECT_THAT(difference.route_difference, HasSubstr(cat("row 7, layer ", layer)));
  // Without what the router read nobody can tell.
  run_.router_reads.clear();
  EXPECT_TRUE(compare_runs(*model_, run_, other).route_is_tie);
}

}  // namespace
}  // namespace tandem
