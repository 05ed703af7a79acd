// `tandem doctor`: a verdict for each check, exit code 1 for a failed one only, and broken checkpoints named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "base/cat.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::HasSubstr;

// What is no matter of speed: the machine's ceilings and its drive are left out.
std::vector<std::string> quick(std::vector<std::string> args) {
  args.insert(args.begin(), {"doctor"});
  args.insert(args.end(), {"--json", "--skip", "memory,disk", "--threads", "1", "--reference-rows", "2"});
  return args;
}

class Report {
 public:
  explicit Report(const CliResult& result) : exit_code_(result.exit_code) {
    document_ = Json::parse(result.out, nullptr, false);
    EXPECT_FALSE(document_.is_discarded()) << result.out << result.err;
  }
  int exit_code() const { return exit_code_; }
  const Json& document() const { return document_; }
  bool has(const std::string& area, const std::string& name) const { return find(area, name) != nullptr; }
  const Json& check(const std::string& area, const std::string& name) const {
    static const Json none = {{"verdict", "none"}, {"message", ""}, {"details", Json::array()}};
    const Json* found = find(area, name);
    EXPECT_NE(found, nullptr) << area << "." << name;
    return found == nullptr ? none : *found;
  }
  std::string verdict(const std::string& area, const std::string& name) const {
    return check(area, name)["verdict"].get<std::string>();
  }
  // Its message and all details.
  std::string words(const std::string& area, const std::string& name) const {
    const Json& found = check(area, name);
    std::string words = found["message"].get<std::string>();
    for (const Json& detail : found["details"]) words += "\n" + detail.get<std::string>();
    return words;
  }

 private:
  const Json* find(const std::string& area, const std::string& name) const {
    for (const Json& check : document_["checks"]) {
      if (check["area"] == area && check["name"] == name) return &check;
    }
    return nullptr;
  }
  int exit_code_;
  Json document_;
};

// A copy of a golden model that a test breaks.
class BrokenModel {
 public:
  explicit BrokenModel(const std::string& model = "k3-tiny") {
    fs::copy(golden_model(model), dir_);
    fs::remove(dir_ + "/expected.safetensors");
  }
  const std::string& dir() const { return dir_; }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_text(path(file));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write(file, text);
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(path(file), std::ios::binary | std::ios::trunc) << text;
  }
  Report doctor(std::vector<std::string> args = {}) const {
    args.insert(args.begin(), dir_);
    return Report(run_cli(quick(std::move(args))));
  }

 private:
  TempFolder folder_;
  std::string dir_ = folder_.path("model");
};

constexpr const char* kSecondShard = "model-00002-of-00002.safetensors";

TEST(DoctorCommand, AWholeModelPassesEveryCheck) {
  const Report report(run_cli(quick({demo_model()})));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_NE(report.document()["verdict"], "failed");
  for (const char* name : {"config", "files", "tensors", "layers", "tokenizer", "downloads"}) {
    EXPECT_EQ(report.verdict("checkpoint", name), "ok") << report.words("checkpoint", name);
  }
  EXPECT_EQ(report.verdict("checkpoint", "hashes"), "skipped");
  EXPECT_THAT(report.words("checkpoint", "hashes"), HasSubstr("nothing to compare with"));
  for (const char* name : {"finite", "chunks", "batch", "decode"}) {
    EXPECT_EQ(report.verdict("self_test", name), "ok") << report.words("self_test", name);
  }
  EXPECT_EQ(report.verdict("sizing", "memory"), "ok");
  EXPECT_FALSE(report.has("memory", "ceilings") || report.has("disk", "read"));
  const Json& layers = report.check("checkpoint", "layers")["values"];
  EXPECT_EQ(layers["layers_bound"], layers["layers"]);
  int64_t counted = 0;
  for (const auto& [verdict, count] : report.document()["counts"].items()) counted += count.get<int64_t>();
  EXPECT_EQ(counted, static_cast<int64_t>(report.document()["checks"].size()));
}

TEST(DoctorCommand, TheMachineAloneInWords) {
  const CliResult result = run_cli({"doctor", "--skip", "memory", "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  for (const char* name : {"cpu.kernels", "cpu.threads", "cpu.smt", "cpu.caches", "cpu.numa", "cpu.huge_pages"}) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
  EXPECT_THAT(result.out, HasSubstr("skipped disk.read"));
  EXPECT_THAT(result.out, HasSubstr(" 0 failed"));
  EXPECT_EQ(result.out.find("checkpoint."), std::string::npos);
}

TEST(DoctorCommand, MeasuresMemoryAndAFolderOfADrive) {
  const TempFolder dir;
  const Report report(
      run_cli({"doctor", "--json", "--skip", "cpu", "--threads", "1", "--disk", dir.path(), "--disk-size", "200MB"}));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_GT(report.check("memory", "ceilings")["values"]["read_gb_s"], 0.0);
  EXPECT_GT(report.check("memory", "size")["values"]["available_bytes"], 0);
  EXPECT_GT(report.check("disk", "file_system")["values"]["free_bytes"], 0);
  const Json& read = report.check("disk", "read");
  if (read["verdict"] != "skipped") {  // memory file systems have no drive
    EXPECT_EQ(read["values"]["block_bytes"], 1 << 20);
    EXPECT_EQ(read["details"].size(), 5u) << read;
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(DoctorCommand, AMissingShardIsNamed) {
  const BrokenModel model;
  fs::remove(model.path(kSecondShard));
  const Report report = model.doctor();
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(report.verdict("checkpoint", "files"), "failed");
  EXPECT_THAT(report.words("checkpoint", "files"), HasSubstr(cat(kSecondShard, ": the shard is missing")));
  EXPECT_EQ(report.verdict("self_test", "load"), "skipped");
}

TEST(DoctorCommand, ATruncatedShardIsNamed) {
  const BrokenModel model;
  fs::resize_file(model.path(kSecondShard), fs::file_size(model.path(kSecondShard)) - 100);
  const Report report = model.doctor();
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(report.verdict("checkpoint", "files"), "failed");
  EXPECT_THAT(report.words("checkpoint", "files"), HasSubstr(kSecondShard));
}

// Field report 71: a prefix that is not what the loader expects. Every tensor is reported both ways.
TEST(DoctorCommand, EveryMissingAndEveryUnusedTensorIsNamed) {
  const BrokenModel model;
  const std::string name = "language_model.model.norm.weight";
  const std::string other = "language_model.model.form.weight";
  for (const auto& file : fs::directory_iterator(model.dir())) {
    const std::string text = read_text(file.path().string());
    if (text.find(name) != std::string::npos) model.replace(file.path().filename().string(), name, other);
  }
  const Report report = model.doctor();
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(report.verdict("checkpoint", "files"), "ok") << report.words("checkpoint", "files");
  const std::string words = report.words("checkpoint", "tensors");
  EXPECT_THAT(words, HasSubstr(cat(name, " is missing")));
  EXPECT_THAT(words, HasSubstr(cat(other, " (")));
  EXPECT_EQ(report.check("checkpoint", "tensors")["values"]["missing"], 1);
  EXPECT_EQ(report.check("checkpoint", "tensors")["values"]["unknown"], 1);
}

// The true names of a large model without a byte of its weights: everything binds, nothing is run.
TEST(DoctorCommand, HeadersAloneBindEveryLayer) {
  const TempFolder dir;
  const std::string model = dir.path("model");
  const CliResult made = run_cli({"init", config_path("k3-mini.json"), "--output", model, "--headers-only"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Report report(run_cli({"doctor", model, "--json", "--skip", "memory,self_test", "--threads", "1"}));
  EXPECT_EQ(report.exit_code(), 0);
  const Json& values = report.check("checkpoint", "layers")["values"];
  EXPECT_EQ(values["layers_bound"], values["layers"]);
  EXPECT_EQ(report.check("checkpoint", "tensors")["values"]["unknown"], 0);
  EXPECT_EQ(report.verdict("disk", "read"), "skipped") << "holes are no drive";
}

TEST(DoctorCommand, AnotherShapeIsNamedWithItsLayer) {
  const BrokenModel model;
  model.replace("config.json", "\"moe_intermediate_size\": 32", "\"moe_intermediate_size\": 64");
  const Report report = model.doctor();
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_THAT(report.words("checkpoint", "tensors"), HasSubstr("has shape"));
  EXPECT_EQ(report.verdict("checkpoint", "layers"), "failed");
  EXPECT_THAT(report.words("checkpoint", "layers"), HasSubstr("layer 1 ("));
}

TEST(DoctorCommand, BrokenSmallFilesAreNamed) {
  const BrokenModel model;
  model.write("config.json", "{");
  const Report config = model.doctor();
  EXPECT_EQ(config.exit_code(), 1);
  EXPECT_EQ(config.verdict("checkpoint", "config"), "failed");
  EXPECT_EQ(config.verdict("checkpoint", "files"), "ok");

  const TempFolder dir;
  const std::string demo = dir.path("demo");
  link_model(demo_model(), demo, {"tiktoken.model", "generation_config.json"});
  std::ofstream(demo + "/tiktoken.model") << "not a rank\n";
  std::ofstream(demo + "/generation_config.json") << R"({"temperature": -1})";
  const Report text(run_cli(quick({demo, "--skip", "self_test"})));
  EXPECT_EQ(text.exit_code(), 1);
  EXPECT_EQ(text.verdict("checkpoint", "tokenizer"), "failed");
  EXPECT_THAT(text.words("checkpoint", "tokenizer"), HasSubstr("tiktoken.model"));
  EXPECT_EQ(text.verdict("checkpoint", "generation_config"), "failed");
  EXPECT_THAT(text.words("checkpoint", "generation_config"), HasSubstr("temperature"));
  EXPECT_FALSE(text.has("self_test", "load"));

  const Report none(run_cli(quick({dir.path("none")})));
  EXPECT_EQ(none.exit_code(), 1);
  EXPECT_EQ(none.verdict("checkpoint", "config"), "failed");
}

TEST(DoctorCommand, HashesAreWrittenComparedAndFoundWrong) {
  const BrokenModel model;
  const std::vector<std::string> hash = {"--skip", "self_test", "--hash"};
  EXPECT_EQ(model.doctor(hash).verdict("checkpoint", "hashes"), "skipped");
  const Report written = model.doctor({"--skip", "self_test", "--write-hashes"});
  EXPECT_EQ(written.exit_code(), 0);
  EXPECT_TRUE(fs::exists(model.path("SHA256SUMS")));
  const Report equal = model.doctor(hash);
  EXPECT_EQ(equal.verdict("checkpoint", "hashes"), "ok") << equal.words("checkpoint", "hashes");
  // The last weight: headers and sizes stay what they were.
  std::string bytes = read_text(model.path(kSecondShard));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  model.write(kSecondShard, bytes);
  const Report damaged = model.doctor(hash);
  EXPECT_EQ(damaged.exit_code(), 1);
  EXPECT_EQ(damaged.verdict("checkpoint", "files"), "ok");
  EXPECT_THAT(damaged.words("checkpoint", "hashes"), HasSubstr(cat(kSecondShard, ": SHA-256 is ")));
  const Report again = model.doctor({"--skip", "self_test", "--write-hashes"});
  EXPECT_EQ(again.exit_code(), 1);
  EXPECT_THAT(again.words("checkpoint", "hashes"), HasSubstr("is there already"));
}

TEST(DoctorCommand, AGoldenFileIsWrittenAndCompared) {
  const BrokenModel model;
  const Report first = model.doctor({"--write-golden", model.path("golden_logits.safetensors")});
  EXPECT_EQ(first.exit_code(), 0);
  EXPECT_EQ(first.verdict("self_test", "write_golden"), "ok");
  EXPECT_EQ(first.verdict("self_test", "golden"), "skipped");
  EXPECT_EQ(model.doctor().verdict("self_test", "golden"), "ok");
  const Report missing = model.doctor({"--golden", model.path("none.safetensors")});
  EXPECT_EQ(missing.exit_code(), 1);
  EXPECT_THAT(missing.words("self_test", "golden"), HasSubstr("none.safetensors"));
}

// Field report 74: advice with numbers, from the configuration alone.
TEST(DoctorCommand, SizesAModelThatDoesNotFit) {
  const Report report(run_cli(quick({config_path("k3.json")})));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_EQ(report.verdict("checkpoint", "files"), "skipped");
  EXPECT_THAT(report.words("sizing", "memory"), HasSubstr("the model takes 1.5"));
  EXPECT_EQ(report.verdict("self_test", "load"), "skipped");
}

TEST(DoctorCommand, WrongUsage) {
  expect_refused(run_cli({"doctor", "--skip", "nothing"}), 2, {"nothing"});
  expect_refused(run_cli({"doctor", "--disk-size", "much"}), 2, {"much"});
  const CliResult help = run_cli({"doctor", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("tandem doctor models/my-k3 --hash"));
}

}  // namespace
}  // namespace tandem::test
