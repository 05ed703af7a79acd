#include "engine/doctor/checkpoint_checks.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/cat.h"
#include "config/generation_config.h"
#include "engine/doctor/size_words.h"
#include "engine/inspect.h"
#include "text/tokenizer.h"

namespace tandem {
namespace {

DoctorCheck checkpoint_check(std::string_view name) { return {.area = "checkpoint", .name = std::string(name)}; }

// A message of many lines: the first is the sentence, the others are its details.
void fail_with(DoctorCheck& check, const Status& status) {
  check.verdict = Verdict::kFailed;
  std::istringstream lines(status.message());
  std::getline(lines, check.message);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(" -");
    if (begin != std::string::npos) check.details.push_back(line.substr(begin));
  }
}

std::optional<ModelConfig> check_config(const std::string& model, bool bare, TellCheck tell) {
  DoctorCheck check = checkpoint_check("config");
  Result<ModelConfig> config = bare ? load_model_config_file(model) : load_model_config(model);
  if (!config.is_ok()) {
    fail_with(check, config.status());
    tell(std::move(check));
    return std::nullopt;
  }
  const ModelConfig& c = config.value();
  check.message = cat(c.num_hidden_layers, " layers, width ", c.hidden_size, ", vocabulary ", c.vocab_size, ", ",
                      c.num_experts, " experts a layer, ", c.num_experts_per_token, " a token");
  tell(std::move(check));
  return std::move(config).value();
}

// What of each layer a checkpoint binds: field report 71, a model that opens and binds nothing.
struct LayerCounts {
  std::vector<int64_t> bound, expected;

  LayerCounts(const Checkpoint& checkpoint, const ModelConfig& config, CheckpointReport& report)
      : bound(static_cast<size_t>(config.num_hidden_layers)), expected(bound.size()) {
    const auto count = [](std::vector<int64_t>& counts, const ExpectedTensor& tensor) {
      if (!tensor.run || tensor.layer < 0 || tensor.layer >= static_cast<int64_t>(counts.size())) return;
      ++counts[static_cast<size_t>(tensor.layer)];
    };
    for_each_expected_tensor(config, [&](const ExpectedTensor& tensor) { count(expected, tensor); });
    report = check_checkpoint(
        checkpoint, config,
        [&](const ExpectedTensor& tensor, const StoredTensor&, std::vector<std::string>&) { count(bound, tensor); });
  }
};

void check_layers(const ModelConfig& config, const LayerCounts& counts, TellCheck tell) {
  DoctorCheck check = checkpoint_check("layers");
  int64_t whole = 0, num_moe = 0;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const auto at = static_cast<size_t>(l);
    num_moe += config.is_moe(l) ? 1 : 0;
    if (counts.bound[at] == counts.expected[at]) {
      ++whole;
      continue;
    }
    const bool kda = config.kinds[at] == LayerKind::kKda;
    check.details.push_back(cat("layer ", l, " (", kda ? "KDA" : "MLA", config.is_moe(l) ? ", MoE" : ", dense",
                                "): ", counts.bound[at], " of ", counts.expected[at], " tensors"));
  }
  check.values = {{"layers", config.num_hidden_layers},
                  {"layers_bound", whole},
                  {"kda_layers", config.num_layers_of(LayerKind::kKda)},
                  {"mla_layers", config.num_layers_of(LayerKind::kMla)},
                  {"moe_layers", num_moe}};
  check.message = cat(whole, " of ", config.num_hidden_layers, " layers bound: ", config.num_layers_of(LayerKind::kKda),
                      " KDA and ", config.num_layers_of(LayerKind::kMla), " MLA by the configuration, ", num_moe,
                      " of them with experts");
  if (whole < config.num_hidden_layers) check.verdict = Verdict::kFailed;
  tell(std::move(check));
}

void check_tensors(const Checkpoint& checkpoint, const CheckpointReport& report, TellCheck tell) {
  DoctorCheck check = checkpoint_check("tensors");
  check.values = {{"missing", static_cast<int64_t>(report.missing.size())},
                  {"unknown", static_cast<int64_t>(report.unknown.size())},
                  {"misshapen", static_cast<int64_t>(report.misshapen.size())},
                  {"bytes", static_cast<int64_t>(checkpoint.total_bytes())}};
  for (const std::string& line : report.misshapen) check.details.push_back(line);
  for (const std::string& name : report.missing) check.details.push_back(cat(name, " is missing"));
  for (const CheckpointReport::Unknown& tensor : report.unknown) {
    check.details.push_back(cat(tensor.name, " (", tensor.shard, ") is no part of this configuration"));
  }
  if (report.is_clean()) {
    check.message =
        cat("all ", checkpoint.num_tensors(), " tensors are known, none is missing, every shape and type fits");
  } else {
    check.verdict = Verdict::kFailed;
    check.message = cat(report.missing.size(), " tensors are missing, ", report.unknown.size(), " unknown, ",
                        report.misshapen.size(), " of another shape or type");
  }
  tell(std::move(check));
}

void check_tokenizer(const std::string& dir, const ModelConfig& config, TellCheck tell) {
  DoctorCheck check = checkpoint_check("tokenizer");
  const Result<Tokenizer> tokenizer = Tokenizer::load(dir, config.vocab_size);
  if (!tokenizer.is_ok()) {
    fail_with(check, tokenizer.status());
    // Without its files a model still runs on token ids.
    if (tokenizer.status().code() == StatusCode::kNotFound) {
      check.verdict = Verdict::kWarning;
      check.message += "; the model runs on token ids only";
    }
    return tell(std::move(check));
  }
  constexpr std::string_view kSample = "Tandem reads 中文, emoji 🚲 and code: for (int i = 0; i < 9; ++i) {}\n";
  const std::vector<TokenId> ids = tokenizer.value().encode_text(kSample);
  const Result<std::string> text = tokenizer.value().decode(ids, false);
  check.values = {{"ranks", tokenizer.value().num_ranks()}, {"vocabulary", tokenizer.value().vocab_size()}};
  if (text.is_ok() && text.value() == kSample) {
    check.message = cat(tokenizer.value().num_ranks(), " ranks and ",
                        tokenizer.value().vocab_size() - tokenizer.value().num_ranks(),
                        " control ids; a sample text is the same after encoding and decoding");
  } else {
    check.verdict = Verdict::kFailed;
    check.message = "a sample text is another one after encoding and decoding";
  }
  tell(std::move(check));
}

void check_generation_config(const std::string& dir, const ModelConfig& config, TellCheck tell) {
  DoctorCheck check = checkpoint_check("generation_config");
  const Result<GenerationConfig> generation = load_generation_config(dir);
  if (!generation.is_ok()) {
    fail_with(check, generation.status());
    return tell(std::move(check));
  }
  std::vector<int32_t> stops = generation.value().eos_token_ids;
  stops.insert(stops.end(), config.eos_token_ids.begin(), config.eos_token_ids.end());
  int64_t outside = 0;
  for (const int32_t id : stops) {
    if (id >= 0 && id < config.vocab_size) continue;
    ++outside;
    check.details.push_back(cat("stop id ", id, " is outside the vocabulary of ", config.vocab_size));
  }
  check.values = {{"temperature", generation.value().temperature},
                  {"top_p", generation.value().top_p},
                  {"stop_ids", static_cast<int64_t>(stops.size())}};
  check.message = cat("temperature ", generation.value().temperature, ", top-p ", generation.value().top_p);
  std::error_code error;
  if (!std::filesystem::exists(cat(dir, "/generation_config.json"), error)) check.message += " (no file: the defaults)";
  if (outside > 0 || stops.empty()) {
    check.verdict = Verdict::kWarning;
    check.message +=
        outside > 0 ? "; a stop id that no token has" : "; no stop id: only the tokenizer's names end a reply";
  }
  tell(std::move(check));
}

}  // namespace

CheckpointFacts check_checkpoint_folder(const std::string& model, TellCheck tell) {
  CheckpointFacts facts;
  std::error_code error;
  const bool bare = std::filesystem::is_regular_file(model, error);
  facts.config = check_config(model, bare, tell);
  DoctorCheck files = checkpoint_check("files");
  if (bare) {
    files.verdict = Verdict::kSkipped;
    files.message = "a configuration alone: there is no checkpoint to look at";
    tell(std::move(files));
    const Result<InspectReport> released = inspect_model(model);
    if (released.is_ok()) facts.tensors = released.value().tensors;
    return facts;
  }
  Result<Checkpoint> checkpoint = Checkpoint::open(model, Checkpoint::Mode::kHeadersOnly);
  if (checkpoint.is_ok()) {
    facts.checkpoint = std::move(checkpoint).value();
    files.values = {{"shards", facts.checkpoint->num_shards()},
                    {"tensors", facts.checkpoint->num_tensors()},
                    {"bytes", static_cast<int64_t>(facts.checkpoint->total_bytes())},
                    {"table_bytes", static_cast<int64_t>(facts.checkpoint->table_bytes())}};
    files.message =
        cat(facts.checkpoint->num_shards(), facts.checkpoint->num_shards() == 1 ? " shard" : " shards", " with ",
            facts.checkpoint->num_tensors(), " tensors, ", bytes_text(facts.checkpoint->total_bytes()),
            "; index and headers agree, names and shapes take ", bytes_text(facts.checkpoint->table_bytes()));
  } else {
    fail_with(files, checkpoint.status());
  }
  tell(std::move(files));
  if (!facts.config) return facts;
  if (facts.checkpoint) {
    facts.tensors.emplace();
    const LayerCounts counts(*facts.checkpoint, *facts.config, *facts.tensors);
    check_tensors(*facts.checkpoint, *facts.tensors, tell);
    check_layers(*facts.config, counts, tell);
  }
  check_tokenizer(model, *facts.config, tell);
  check_generation_config(model, *facts.config, tell);
  return facts;
}

}  // namespace tandem
