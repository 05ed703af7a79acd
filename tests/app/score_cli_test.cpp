// `tandem score`: the tensors it writes, that the ways of cutting the work agree, and its refusals.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr float kLogitTolerance = 5e-4f;  // tests/data/golden/README.md, float32

using Shapes = std::map<std::string, std::pair<std::string, std::vector<int64_t>>>;

Shapes shapes_of(const Golden& file) {
  Shapes shapes;
  for (const auto& [name, tensor] : file.tensors()) shapes[name] = {tensor.dtype, tensor.shape};
  return shapes;
}

// The widths of a golden model, from its README.
struct Widths {
  const char* model;
  int64_t layers;
  std::vector<int64_t> mla_layers;
  int64_t hidden, vocab, heads, head_dim, conv_rows, latent, topk;
};

const Widths kModels[] = {{"k3-tiny", 9, {3, 7, 8}, 128, 384, 4, 32, 3, 48, 4},
                          {"kimi-linear-tiny", 4, {2}, 64, 320, 2, 128, 3, 48, 4}};

Shapes expected_shapes(const Widths& w, const std::string& id, int64_t tokens) {
  Shapes shapes;
  shapes[id + ".logits"] = {"F32", {tokens, w.vocab}};
  shapes[id + ".final_in"] = shapes[id + ".final_hidden"] = {"F32", {tokens, w.hidden}};
  for (int64_t l = 0; l < w.layers; ++l) {
    const std::string layer = cat(id, ".layer.", l);
    shapes[layer + ".out"] = {"F32", {tokens, w.hidden}};
    if (l > 0) {  // the first layer is dense
      shapes[layer + ".router_idx"] = {"I32", {tokens, w.topk}};
      shapes[layer + ".router_w"] = {"F32", {tokens, w.topk}};
    }
    if (std::find(w.mla_layers.begin(), w.mla_layers.end(), l) != w.mla_layers.end()) {
      shapes[layer + ".mla_latent"] = {"F32", {tokens, w.latent}};
      continue;
    }
    shapes[layer + ".kda_state"] = {"F32", {w.heads, w.head_dim, w.head_dim}};
    for (const char* conv : {".conv_q", ".conv_k", ".conv_v"}) {
      shapes[layer + conv] = {"F32", {w.heads * w.head_dim, w.conv_rows}};
    }
  }
  return shapes;
}

const char* const kPrompts = R"({"prompts":[{"id":"a","tokens":[1,2,3,4,5,6,7]},{"id":"b","tokens":[9,8,7]}]})";

TEST(ScoreCommand, WritesEveryTensorAskedFor) {
  for (const Widths& widths : kModels) {
    SCOPED_TRACE(widths.model);
    const TempFolder dir;
    const CliResult result =
        run_cli({"score", golden_model(widths.model), "--input", dir.write("in.json", kPrompts), "--output",
                 dir.path("out.safetensors"), "--hidden", "--state", "--router", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    Shapes expected = expected_shapes(widths, "a", 7);
    expected.merge(expected_shapes(widths, "b", 3));
    EXPECT_EQ(shapes_of(Golden::load_path(dir.path("out.safetensors"))), expected);
    const Json document = Json::parse(result.out);
    EXPECT_EQ(document["tensors"], expected.size());
    EXPECT_EQ(document["prompts"][0]["scored"], 6);
    EXPECT_EQ(document["prompts"][1]["scored"], 2);
    const double loss = document["prompts"][0]["negative_log_likelihood"].get<double>() +
                        document["prompts"][1]["negative_log_likelihood"].get<double>();
    EXPECT_NEAR(document["perplexity"].get<double>(), std::exp(loss / 8), 1e-9 * std::exp(loss / 8));
  }
}

TEST(ScoreCommand, WritesLogitsOnlyByDefault) {
  const TempFolder dir;
  const CliResult result = run_cli({"score", golden_model("k3-tiny"), "--input", dir.write("in.json", kPrompts),
                                    "--output", dir.path("out.safetensors")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Shapes expected = {{"a.logits", {"F32", {7, 384}}}, {"b.logits", {"F32", {3, 384}}}};
  EXPECT_EQ(shapes_of(Golden::load_path(dir.path("out.safetensors"))), expected);
  EXPECT_NE(result.out.find("perplexity "), std::string::npos) << result.out;
}

TEST(ScoreCommand, EveryWayOfCuttingTheWorkAgrees) {
  for (const Widths& widths : kModels) {
    const Golden golden = Golden::load(cat("golden/", widths.model, "/expected.safetensors"));
    const TempFolder dir;
    const std::string prompt = cat(R"({"prompts":[{"id":"other","tokens":[4,4,2]},{"id":"p37","tokens":[)",
                                   token_list(golden["p37.ids"].i32), "]}]}");
    const std::string input = dir.write("in.json", prompt);
    const std::vector<std::vector<std::string>> modes = {
        {}, {"--batch"}, {"--decode"}, {"--prefill-chunk", "5"}, {"--batch", "--decode"}};
    for (const std::vector<std::string>& mode : modes) {
      SCOPED_TRACE(cat(widths.model, " ", mode.empty() ? "one chunk" : mode.front()));
      std::vector<std::string> args = {"score",    golden_model(widths.model), "--input", input,
                                       "--output", dir.path("out.safetensors")};
      args.insert(args.end(), mode.begin(), mode.end());
      const CliResult result = run_cli(args);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      const Golden written = Golden::load_path(dir.path("out.safetensors"));
      EXPECT_TRUE(all_close(written["p37.logits"].f32, golden["p37.logits"].f32, kLogitTolerance));
    }
  }
}

// A token without a successor predicts nothing: the perplexity is no number, and says so.
TEST(ScoreCommand, OneTokenHasNoPerplexity) {
  const TempFolder dir;
  const std::string input = dir.write("in.json", R"({"prompts":[{"id":"a","tokens":[3]}]})");
  const std::vector<std::string> args = {"score",    golden_model("k3-tiny"),    "--input", input,
                                         "--output", dir.path("out.safetensors")};
  std::vector<std::string> json_args = args;
  json_args.push_back("--json");
  const CliResult json = run_cli(json_args);
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_TRUE(Json::parse(json.out)["perplexity"].is_null()) << json.out;
  const CliResult text = run_cli(args);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_NE(text.out.find("over 0 predictions"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("-nan"), std::string::npos) << text.out;
}

TEST(ScoreCommand, RefusesBadInputFiles) {
  const TempFolder dir;
  const auto refused = [&](const std::string& text, std::vector<std::string_view> words) {
    SCOPED_TRACE(text);
    expect_refused(run_cli({"score", golden_model("k3-tiny"), "--input", dir.write("in.json", text), "--output",
                            dir.path("out.safetensors")}),
                   1, words);
    EXPECT_FALSE(fs::exists(dir.path("out.safetensors")));
  };
  refused(R"({"prompts":[{"id":"a","tokens":[1]},{"id":"a","tokens":[2]}]})", {"prompts[1].id", "\"a\""});
  refused(R"({"prompts":[{"id":"a","tokens":[]}]})", {"prompts[0].tokens", "non-empty"});
  refused(R"({"prompts":[{"id":"a","tokens":[1,384]}]})", {"\"a\"", "384", "0..383"});
  refused(R"({"prompts":[]})", {"in.json", "at least one prompt"});
  refused("{", {"in.json", "JSON"});
  expect_refused(run_cli({"score", golden_model("k3-tiny"), "--input", dir.path("none.json"), "--output",
                          dir.path("out.safetensors")}),
                 1, {"none.json"});
  expect_refused(
      run_cli({"score", golden_model("k3-tiny"), "--input", dir.path(), "--output", dir.path("out.safetensors")}), 1,
      {dir.path()});
}

TEST(ScoreCommand, RefusesOutputsThatAreNoFiles) {
  const TempFolder dir;
  const std::string input = dir.write("in.json", kPrompts);
  fs::create_directory(dir.path("folder"));
  ASSERT_EQ(::mkfifo(dir.path("pipe").c_str(), 0600), 0);
  for (const char* name : {"folder", "pipe", "no/such/folder", "in.json"}) {
    SCOPED_TRACE(name);
    expect_refused(run_cli({"score", golden_model("k3-tiny"), "--input", input, "--output", dir.path(name)}), 1,
                   {name});
  }
  EXPECT_TRUE(fs::is_directory(dir.path("folder")));
  EXPECT_TRUE(fs::is_fifo(dir.path("pipe")));
  EXPECT_EQ(read_text(input), kPrompts);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++entries;
  EXPECT_EQ(entries, 3);  // no temporary file is left
}

TEST(ScoreCommand, AFullDiskLeavesNothing) {
  const TempFolder dir;
  const CliResult result = run_cli({"score", golden_model("k3-tiny"), "--input", dir.write("in.json", kPrompts),
                                    "--output", dir.path("out.safetensors")},
                                   {.file_size_limit = 4096});
  expect_refused(result, 1, {"out.safetensors"});
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++entries;
  EXPECT_EQ(entries, 1);  // the input
}

}  // namespace
}  // namespace tandem::test
