#include "evaluate/evaluation.h"

#include <algorithm>
#include <chrono>

#include "base/cat.h"
#include "base/read_file.h"
#include "evaluate/chat_cases.h"
#include "evaluate/judge.h"
#include "text/json_format.h"

namespace tandem {
namespace {

constexpr size_t kShownPromptTokens = 60;
constexpr int64_t kMaxProseFileBytes = int64_t{1} << 30;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status in_section(const std::string& section, const Status& status) {
  return Status(status.code(), cat(section, ": ", status.message()));
}

// At most `bytes`, cut in front of a character.
std::string_view head_of(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

std::vector<std::string> paragraphs_of(std::string_view text) {
  std::vector<std::string> paragraphs;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    if (end > begin) paragraphs.emplace_back(text.substr(begin, end - begin));
    begin = end + 2;
  }
  return paragraphs;
}

class Evaluator {
 public:
  Evaluator(LoadedModel& model, const Tokenizer& tokenizer, const EvalRecipe& recipe, const EvalOptions& options,
            FunctionRef<void(const EvalProgress&)> progress)
      : model_(model), tokenizer_(tokenizer), recipe_(recipe), options_(options), progress_(progress) {}

  Result<EvalReport> run() {
    const Clock::time_point start = Clock::now();
    report_.model = model_.dir();
    report_.seed = recipe_.seed;
    TANDEM_RETURN_IF_ERROR(read_prose());
    if (recipe_.score_prose && !recipe_.prose_files.empty()) TANDEM_RETURN_IF_ERROR(score_prose());
    ChatGeneratorOptions generator;
    generator.seed = recipe_.seed;
    generator.tokenizer = &tokenizer_;
    for (const std::string& path : matching_files(recipe_.gap_prose)) {
      const auto text = read_file(path, "a text that fills gaps", kMaxProseFileBytes);
      if (!text.is_ok()) return text.status();
      for (std::string& paragraph : paragraphs_of(text.value())) generator.prose.push_back(std::move(paragraph));
    }
    const ChatGenerator chats(std::move(generator));
    if (recipe_.law_tokens > 0) TANDEM_RETURN_IF_ERROR(check_law(chats));
    for (const FamilyCases& cases : recipe_.chats) TANDEM_RETURN_IF_ERROR(run_chats(chats, cases));
    report_.seconds = seconds_since(start);
    return std::move(report_);
  }

 private:
  Status read_prose() {
    const std::vector<std::string> files = matching_files(recipe_.prose_files);
    if (files.empty()) return Status::ok();
    const int64_t share = std::max<int64_t>(1, recipe_.prose_max_bytes / static_cast<int64_t>(files.size()));
    for (const std::string& path : files) {
      const auto text = read_file(path, "a held-out text", kMaxProseFileBytes);
      if (!text.is_ok()) return text.status();
      if (text.value().empty()) return Status::invalid(cat(path, ": expected a held-out text, found an empty file"));
      prose_.emplace_back(path, head_of(text.value(), static_cast<size_t>(share)));
    }
    return Status::ok();
  }

  Status score_prose() {
    ProseScore& prose = report_.prose.emplace();
    if (prose_.empty()) {
      prose.reason = cat("no file matches ", recipe_.prose_files[0],
                         recipe_.prose_files.size() > 1 ? " or the other patterns" : "");
      return Status::ok();
    }
    std::string all;
    for (const auto& [path, text] : prose_) {
      const auto score = score_text(model_, tokenizer_, text, recipe_.prose, [&](int64_t done, int64_t total) {
        progress_({cat("prose ", path), done, total});
      });
      if (!score.is_ok()) return in_section(path, score.status());
      prose.files.push_back({path, score.value()});
      prose.total.add(score.value());
      all += text;
    }
    progress_({"prose: compressors", 0, 1});
    prose.compressors = compress_with_programs(all);
    progress_({"prose: compressors", 1, 1});
    return Status::ok();
  }

  Status check_law(const ChatGenerator& chats) {
    std::vector<TokenId> tokens;
    if (!prose_.empty()) {
      report_.law_text = prose_[0].first;
      const auto bytes = static_cast<size_t>(recipe_.law_tokens) * 16;
      tokens = tokenizer_.encode_text(head_of(prose_[0].second, bytes));
    } else {
      report_.law_text = "a test conversation";
      const auto cases = make_chat_cases(chats, tokenizer_, {ChatFamily::kRecall, 1, recipe_.law_tokens});
      if (!cases.is_ok()) return in_section("laws", cases.status());
      tokens = cases.value()[0].task.prompt;
    }
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(recipe_.law_tokens)));
    progress_({"laws", 0, 1});
    const auto law = check_prefill_is_decode(model_, tokens, recipe_.prose.prefill_chunk);
    if (!law.is_ok()) return in_section("laws", law.status());
    report_.law = law.value();
    progress_({"laws", 1, 1});
    return Status::ok();
  }

  Status run_chats(const ChatGenerator& chats, const FamilyCases& wanted) {
    const Clock::time_point start = Clock::now();
    EvalSection section;
    section.name = wanted.name();
    progress_({section.name, 0, wanted.cases});
    const auto cases = make_chat_cases(chats, tokenizer_, wanted);
    if (!cases.is_ok()) return in_section(section.name, cases.status());
    std::vector<GreedyTask> tasks;
    for (const ChatCase& one : cases.value()) tasks.push_back(one.task);
    GreedyBatchOptions batch;
    batch.max_sequences = recipe_.batch;
    batch.stop_tokens = model_.stop_tokens();
    const auto replies = decode_greedily(model_, tasks, batch, [&](int64_t done, int64_t total) {
      progress_({section.name, done, total});
    });
    if (!replies.is_ok()) return in_section(section.name, replies.status());

    section.cases = static_cast<int64_t>(tasks.size());
    const int64_t distance = wanted.distance_tokens.value_or(0);
    if (recipe_.trained_length && distance > *recipe_.trained_length) {
      section.times_trained_length = static_cast<double>(distance) / static_cast<double>(*recipe_.trained_length);
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(judge(cases.value()[i], replies.value()[i], section));
    }
    section.seconds = seconds_since(start);
    report_.sections.push_back(std::move(section));
    return Status::ok();
  }

  Status judge(const ChatCase& one, const GreedyReply& reply, EvalSection& section) {
    const auto parsed = read_reply(tokenizer_, one.example.request, reply);
    if (!parsed.is_ok()) return in_section(section.name, parsed.status());
    const Verdict verdict = judge_reply(one.example, parsed.value());
    section.ended += reply.finish_reason == FinishReason::kStop ? 1 : 0;
    section.prompt_tokens += static_cast<int64_t>(one.task.prompt.size());
    section.reply_tokens += static_cast<int64_t>(reply.tokens.size());
    switch (one.example.family) {
      case ChatFamily::kToolCall:
        count(section, "valid call", verdict.valid);
        count(section, "exact call", verdict.right);
        break;
      case ChatFamily::kJson:
        count(section, "valid JSON", verdict.valid);
        count(section, "right", verdict.right);
        break;
      case ChatFamily::kArithmetic:
        count(section, "right", verdict.right);
        count(section, one.operation, verdict.right);
        break;
      case ChatFamily::kToolAnswer: count(section, "uses the result", verdict.right); break;
      case ChatFamily::kUnknownTool: count(section, "refused", verdict.right); break;
      default: count(section, "right", verdict.right);
    }
    if (!verdict.right) keep_failure(one, reply, verdict, section);
    return Status::ok();
  }

  static void count(EvalSection& section, const std::string& metric, bool success) {
    auto at = std::ranges::find(section.shares, metric, &EvalShare::metric);
    if (at == section.shares.end()) at = section.shares.insert(at, {section.name, metric, 0, 0});
    ++at->cases;
    at->successes += success ? 1 : 0;
  }

  void keep_failure(const ChatCase& one, const GreedyReply& reply, const Verdict& verdict, const EvalSection& section) {
    const auto kept = std::ranges::count(report_.failures, section.name, &EvalFailure::section);
    if (kept >= options_.max_failures) return;
    const std::span<const TokenId> prompt(one.task.prompt);
    const auto tail = prompt.last(std::min(prompt.size(), kShownPromptTokens));
    EvalFailure failure;
    failure.section = section.name;
    failure.prompt_tail = tokenizer_.decode(tail, /*skip_special=*/false).value();
    failure.got = tokenizer_.decode(reply.tokens, /*skip_special=*/false).value();
    failure.fault = verdict.fault;
    failure.expected = one.example.answer;
    for (const ToolCall& call : one.example.reply.tool_calls) {
      failure.expected += cat(failure.expected.empty() ? "" : " ", call.name, format_json_spaced(call.arguments));
    }
    report_.failures.push_back(std::move(failure));
  }

  LoadedModel& model_;
  const Tokenizer& tokenizer_;
  const EvalRecipe& recipe_;
  const EvalOptions& options_;
  FunctionRef<void(const EvalProgress&)> progress_;
  EvalReport report_;
  std::vector<std::pair<std::string, std::string>> prose_;  // path, text
};

}  // namespace

Result<EvalReport> evaluate(LoadedModel& model, const EvalRecipe& recipe, const EvalOptions& options,
                            FunctionRef<void(const EvalProgress&)> progress) {
  const auto tokenizer = model.tokenizer();
  if (!tokenizer.is_ok()) return tokenizer.status();
  return Evaluator(model, *tokenizer.value(), recipe, options, progress).run();
}

}  // namespace tandem
