// The recipe, a whole evaluation of a model that knows nothing, and the picture of a run.
#include "evaluate/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/cat.h"
#include "evaluate/child_process.h"
#include "evaluate/small_model.h"
#include "evaluate/training_curves.h"

namespace tandem {
namespace {

using test::SmallModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr std::string_view kRecipe = R"({"seed": 7, "trained_length": 100, "batch": 5, "law_tokens": 40,
  "prose": {"files": ["texts/*.txt"], "max_bytes": 900, "window_tokens": 64, "context_tokens": 16},
  "recall": {"200": 2, "16": 3}, "families": {"tool_call": 2, "greeting": 2, "json": 2, "arithmetic": 3, "copy": 0,
  "unknown_tool": 1, "tool_answer": 1, "multi_turn": 1, "reading": 1}})";

std::string names_of(const EvalRecipe& recipe) {
  std::string names;
  for (const FamilyCases& cases : recipe.chats) names += cat(cases.name(), "=", cases.cases, " ");
  return names;
}

TEST(EvalRecipe, Reads) {
  const EvalRecipe recipe = parse_eval_recipe(kRecipe, "r.json", "some/folder").value();
  EXPECT_EQ(recipe.seed, 7u);
  EXPECT_EQ(recipe.batch, 5);
  EXPECT_EQ(recipe.trained_length, 100);
  EXPECT_EQ(recipe.law_tokens, 40);
  EXPECT_THAT(recipe.prose_files, ElementsAre("some/folder/texts/*.txt"));
  EXPECT_EQ(recipe.prose_max_bytes, 900);
  EXPECT_EQ(recipe.prose.window_tokens, 64);
  EXPECT_EQ(names_of(recipe),
            "greeting=2 arithmetic=3 recall@16=3 recall@200=2 multi_turn=1 reading=1 tool_call=2 tool_answer=1 "
            "unknown_tool=1 json=2 ");
  EXPECT_TRUE(parse_eval_recipe(R"({"law_tokens": 1})", "r.json", "").value().chats.empty());
}

TEST(EvalRecipe, RefusalsNameTheKey) {
  const auto message = [](std::string_view text) {
    const auto recipe = parse_eval_recipe(text, "r.json", "");
    EXPECT_FALSE(recipe.is_ok()) << text;
    EXPECT_THAT(recipe.status().message(), HasSubstr("r.json"));
    return recipe.status().message();
  };
  EXPECT_THAT(message("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(message("{"), HasSubstr("r.json"));
  EXPECT_THAT(message(R"({"families": {"copy": 0}})"), HasSubstr("expected something to measure"));
  EXPECT_THAT(message(R"({"sed": 1})"), HasSubstr("sed: unknown key"));
  EXPECT_THAT(message(R"({"seed": -1})"), HasSubstr("seed: expected an integer"));
  EXPECT_THAT(message(R"({"batch": 1.5})"), HasSubstr("batch"));
  EXPECT_THAT(message(R"({"prose": {"file": []}})"), HasSubstr("prose.file: unknown key"));
  EXPECT_THAT(message(R"({"prose": {"files": "a"}})"), HasSubstr("files: expected a list"));
  EXPECT_THAT(message(R"({"prose": {"window_tokens": 64, "context_tokens": 64}})"), HasSubstr("context_tokens"));
  EXPECT_THAT(message(R"({"families": {"jokes": 3}})"), HasSubstr("families.jokes: expected one of greeting"));
  EXPECT_THAT(message(R"({"families": {"copy": "x"}})"), HasSubstr("copy"));
  EXPECT_THAT(message(R"({"recall": {"far": 3}})"), HasSubstr("recall.far"));
  EXPECT_THAT(message(R"({"recall": {"16": -3}})"), HasSubstr("16: expected an integer"));
}

TEST(EvalRecipe, KeepsOnlyWhatIsNamed) {
  const auto kept = [](const std::vector<std::string>& names) {
    EvalRecipe recipe = parse_eval_recipe(kRecipe, "r.json", "").value();
    EXPECT_TRUE(keep_only(recipe, names).is_ok());
    return cat(names_of(recipe), recipe.prose_files.size(), recipe.score_prose ? "p" : "", recipe.law_tokens);
  };
  EXPECT_EQ(kept({"recall"}), "recall@16=3 recall@200=2 00");
  EXPECT_EQ(kept({"recall@200", "json"}), "recall@200=2 json=2 00");
  EXPECT_EQ(kept({"prose"}), "1p0");
  EXPECT_EQ(kept({"laws"}), "140");
  EvalRecipe recipe = parse_eval_recipe(kRecipe, "r.json", "").value();
  EXPECT_THAT(keep_only(recipe, {"copy"}).message(), HasSubstr("--only copy: expected what the recipe measures"));
}

class WholeEvaluation : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = SmallModel::get().path("recipe");
    std::filesystem::create_directories(folder_ + "/texts");
    const std::string text =
        "The mill stood by the river. Nobody had worked in it for years, and the wheel was still.\n";
    for (const char* name : {"a", "b"}) {
      std::ofstream out(cat(folder_, "/texts/", name, ".txt"));
      for (int i = 0; i < 10; ++i) out << text;
    }
    recipe_ = parse_eval_recipe(kRecipe, "r.json", folder_).value();
  }
  EvalReport run(const EvalOptions& options) {
    auto report = evaluate(SmallModel::get().engine(), recipe_, options, [](const EvalProgress& progress) {
      EXPECT_LE(progress.done, progress.total);
      EXPECT_FALSE(progress.section.empty());
    });
    EXPECT_TRUE(report.is_ok()) << report.status().message();
    return std::move(report).value();
  }
  std::string folder_;
  EvalRecipe recipe_;
};

// A model that knows nothing: every part runs, scores near zero, and the report says so in both forms.
TEST_F(WholeEvaluation, OfARandomModel) {
  const EvalReport report = run({.max_failures = 1});
  ASSERT_TRUE(report.prose.has_value());
  EXPECT_EQ(report.prose->files.size(), 2u);
  EXPECT_EQ(report.prose->total.bytes, 2 * 450);
  EXPECT_GT(report.prose->total.bits_per_byte(), 4);  // a toy vocabulary and random weights
  ASSERT_TRUE(report.law.has_value());
  EXPECT_EQ(report.law->same_best, report.law->positions);
  EXPECT_EQ(report.law->positions, 40);
  ASSERT_EQ(report.sections.size(), 10u);
  for (const EvalSection& section : report.sections) {
    EXPECT_GT(section.cases, 0);
    EXPECT_GT(section.prompt_tokens, section.cases);
    for (const EvalShare& share : section.shares) EXPECT_EQ(share.successes, 0) << section.name << " " << share.metric;
  }
  EXPECT_EQ(report.sections[2].times_trained_length, 0);  // recall@16
  EXPECT_EQ(report.sections[3].times_trained_length, 2);  // recall@200
  EXPECT_GT(report.sections[3].prompt_tokens, 2 * 200);
  ASSERT_EQ(report.failures.size(), 10u);  // one of each
  EXPECT_THAT(report.failures[0].prompt_tail, HasSubstr("<|open|>message role=\"assistant\"<|sep|>"));

  const std::string text = eval_report_text(report);
  for (const char* word :
       {"tokens/byte", "all, this model", "all, xz -9e", "prefill ≡ decode", "recall@200", "2× the trained length",
        "valid call", "exact call", "valid JSON", "refused", "uses the result", "expected  "}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
  const Json json = Json::parse(eval_report_json(report));
  EXPECT_EQ(json["sections"].size(), 10u);
  EXPECT_EQ(json["sections"][0]["shares"][0]["share"], 0.0);
  EXPECT_GT(json["sections"][0]["shares"][0]["high"], 0.5);  // two cases prove little
  EXPECT_EQ(json["prose"]["bytes"], 900);
  EXPECT_EQ(json["prose"]["compressors"].size(), 2u);
}

TEST_F(WholeEvaluation, DependsOnTheSeedAlone) {
  recipe_.prose_files.clear();
  recipe_.law_tokens = 0;
  ASSERT_TRUE(keep_only(recipe_, {"greeting", "recall@16"}).is_ok());
  const auto replies = [&](uint64_t seed) {
    recipe_.seed = seed;
    std::string all;
    for (const EvalFailure& failure : run({.max_failures = 100}).failures) all += failure.prompt_tail + failure.got;
    return all;
  };
  const std::string first = replies(1);
  EXPECT_EQ(first, replies(1));
  EXPECT_NE(first, replies(2));
}

TEST_F(WholeEvaluation, SaysWhichProseIsMissing) {
  recipe_ =
      parse_eval_recipe(R"({"prose": {"files": ["nothing/*.txt"]}, "law_tokens": 20})", "r.json", folder_).value();
  const EvalReport report = run({});
  EXPECT_THAT(report.prose->reason, HasSubstr("nothing/*.txt"));
  EXPECT_THAT(eval_report_text(report), HasSubstr("prose: not measured: no file matches"));
  EXPECT_EQ(report.law->positions, 20);  // on a conversation then
}

TEST_F(WholeEvaluation, RefusesAnEmptyText) {
  std::ofstream(folder_ + "/empty.txt").flush();
  recipe_ = parse_eval_recipe(R"({"prose": {"files": ["empty.txt"]}})", "r.json", folder_).value();
  const auto report = evaluate(SmallModel::get().engine(), recipe_, {}, [](const EvalProgress&) {});
  EXPECT_THAT(report.status().message(), HasSubstr("empty.txt: expected a held-out text, found an empty file"));
}

constexpr std::string_view kLog =
    "{\"step\":1,\"tokens\":10,\"loss\":9.5,\"learning_rate\":1e-4,\"grad_norm\":3,\"expert_load\":[1.5,"
    "2],\"expert_load_mean\":1.75,\"expert_load_64\":{\"mean\":1.25,\"worst\":1.5}}\n"
    "{\"step\":2,\"loss\":8.5,\"learning_rate\":2e-4,\"grad_norm\":null,\"tokens_per_second\":100,\"other\":{}}\n"
    "\n{\"step\":2,\"loss\":8.25}\n{\"step\":2,\"validation_loss\":8.75,\"data\":\"it's\\u0001`id`\"}\n{\"step\":3,"
    "\"lo";

TEST(TrainingCurves, ReadsWhatIsThere) {
  const TrainingCurves curves = parse_training_log(kLog, "log").value();
  EXPECT_EQ(curves.loss, (Curve{{1, 9.5}, {2, 8.25}}));  // the last line of a step counts
  EXPECT_EQ(curves.expert_load, (Curve{{1, 2}}));
  EXPECT_EQ(curves.expert_load_mean, (Curve{{1, 1.75}}));
  EXPECT_EQ(curves.expert_load_64, (Curve{{1, 1.5}}));
  EXPECT_EQ(curves.grad_norm, (Curve{{1, 3}}));
  EXPECT_EQ(curves.validation_loss.begin()->second, (Curve{{2, 8.75}}));
  EXPECT_FALSE(curves.is_empty());
  EXPECT_TRUE(parse_training_log("", "log").value().is_empty());
  EXPECT_THAT(parse_training_log("{\"step\":1}\nx\n{}\n", "log").status().message(), HasSubstr("log line 2"));
  EXPECT_THAT(parse_training_log("{\"loss\":1}\n", "log").status().message(), HasSubstr("log line 1: expected"));
}

TEST(TrainingCurves, AMissingFieldLeavesItsPanelOut) {
  std::string script = gnuplot_script(parse_training_log(kLog, "log").value(), "a run's name");
  for (const char* part : {"set title 'learning rate'", "'worst layer, over 64 steps'", "title 'a run''s name'",
                           "'validation: it''s`id`'", "layout 3,2"}) {
    EXPECT_THAT(script, HasSubstr(part));
  }
  script = gnuplot_script(parse_training_log("{\"step\":1,\"loss\":2}\n", "log").value(), "x");
  EXPECT_THAT(script, Not(HasSubstr("learning rate")));
  EXPECT_THAT(script, HasSubstr("layout 1,1"));
}

TEST(TrainingCurves, DrawsAPng) {
  std::string log;
  for (int i = 0; i < 500; ++i)
    log += cat("{\"step\":", i, ",\"loss\":", 9.0 / (1 + i), ",\"grad_norm\":", i % 3, "}\n");
  const auto picture = draw_training_curves(parse_training_log(log, "log").value(), "run 'x' $(id)");
  if (!picture.is_ok() && picture.status().code() == StatusCode::kNotFound) GTEST_SKIP() << picture.status().message();
  ASSERT_TRUE(picture.is_ok()) << picture.status().message();
  EXPECT_GT(picture.value().size(), 5000u);
  const auto empty = draw_training_curves({}, "x");
  EXPECT_EQ(empty.status().code(), StatusCode::kInvalidArgument);
  // The log's odd names reach gnuplot as text.
  EXPECT_TRUE(draw_training_curves(parse_training_log(kLog, "log").value(), "x").is_ok());
}

}  // namespace
}  // namespace tandem
