#include "corpus/corpus_texts.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "base/read_file.h"
#include "corpus/shard_documents.h"
#include "text/chat_format.h"
#include "text/segment.h"
#include "weights/atomic_file.h"
#include "weights/toy_tokenizer.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr char kDocumentEnd = '\f';

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? Status::io(cat(path, ": cannot make the folder: ", error.message())) : Status::ok();
}

// The joined documents of one source.
struct SourceTexts {
  std::string train, held_out, held_out_joined;
};

Status add_source(const SourceRecipe& recipe, const std::string& input_dir, uint64_t held_out_one_of,
                  CorpusBuilder& builder, SourceTexts& out, TextCounts& counts) {
  CorpusSource source = recipe.source;
  if (!recipe.version_file.empty()) {
    auto version = read_file(cat(input_dir, "/", recipe.version_file), "a package's version");
    if (!version.is_ok()) return version.status();
    source.version = version.value().substr(0, version.value().find('\n'));
  }
  builder.begin_source(std::move(source));
  auto files = matching_files(input_dir, recipe.files);
  if (!files.is_ok()) return files.status();
  if (files.value().empty()) {
    return Status::not_found(cat(recipe.source.package, ": expected files below ", input_dir, " that match ",
                                 recipe.files.front(), ", found none"));
  }
  int64_t bytes = 0;
  for (const std::string& path : files.value()) {
    auto file = read_file(path, "a text");
    if (!file.is_ok()) return file.status();
    for (std::string& raw : extract_documents(file.value(), recipe.format, recipe.entries_per_document)) {
      if (bytes >= recipe.max_bytes) return Status::ok();
      const auto text = builder.add_document(recipe.prose_only ? paragraphs_of_prose(raw) : raw);
      if (!text) continue;
      const auto size = static_cast<int64_t>(text->size());
      bytes += size;
      if (is_held_out(*text, held_out_one_of)) {
        out.held_out += *text + kDocumentEnd;
        out.held_out_joined += cat(out.held_out_joined.empty() ? "" : "\n", *text);
        ++counts.held_out_documents;
        counts.held_out_bytes += size;
      } else {
        out.train += *text + kDocumentEnd;
        ++counts.train_documents;
        counts.train_bytes += size;
      }
    }
  }
  return Status::ok();
}

// Every text that the chat format encodes alone is a document here, so that the tokenizer learns from just the pieces
// that it will cut: what people and the model write, declarations, the format's fixed texts and attributes.
Result<std::string> chat_sample(const CorpusRecipe& recipe) {
  const auto files = make_toy_tokenizer(1024);  // any with the control names renders alike
  auto tokenizer = Tokenizer::from_memory(files->rank_file(), files->tokenizer_config_json(), files->vocab_size);
  if (!tokenizer.is_ok()) return tokenizer.status();
  ChatGeneratorOptions options;
  options.seed = recipe.sample_seed;
  options.max_gap_tokens = 32;
  const ChatGenerator generator(std::move(options));
  std::string out;
  for (int64_t i = 0; i < recipe.sample_examples; ++i) {
    const auto index = static_cast<uint64_t>(i);
    ChatExample example = generator.example(generator.family_of(index), ChatSplit::kTrain, index);
    example.request.messages.push_back(std::move(example.reply));
    example.request.add_generation_prompt = false;
    auto segments = render_chat(tokenizer.value(), example.request);
    if (!segments.is_ok()) return segments.status();
    for (const Segment& segment : segments.value()) {
      if (!segment.is_control) out += cat(segment.text, std::string_view(&kDocumentEnd, 1));
    }
  }
  return out;
}

}  // namespace

Result<std::vector<std::string>> matching_files(const std::string& dir, const std::vector<std::string>& patterns) {
  std::vector<std::string> out;
  std::error_code error;
  fs::recursive_directory_iterator walk(dir, error);
  if (error) return Status::not_found(cat(dir, ": expected a folder: ", error.message()));
  for (; walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (error) return Status::io(cat(dir, ": ", error.message()));
    if (!walk->is_regular_file(error)) continue;
    const std::string path = walk->path().string();
    const std::string relative = path.substr(dir.size() + (dir.ends_with('/') ? 0 : 1));
    const auto matches = [&](const std::string& p) { return fnmatch(p.c_str(), relative.c_str(), 0) == 0; };
    if (std::ranges::any_of(patterns, matches)) out.push_back(path);
  }
  std::ranges::sort(out);
  return out;
}

Result<TextCounts> build_texts(const CorpusRecipe& recipe, const std::string& input_dir, const std::string& output_dir,
                               const ProgressLine& progress) {
  for (const char* folder : {"/texts", "/held-out", "/held-out-documents"}) {
    TANDEM_RETURN_IF_ERROR(make_folder(output_dir + folder));
  }
  CorpusBuilder builder(recipe.clean);
  TextCounts counts;
  for (const SourceRecipe& source : recipe.sources) {
    SourceTexts texts;
    TANDEM_RETURN_IF_ERROR(add_source(source, input_dir, recipe.held_out_one_of, builder, texts, counts));
    const std::string name = cat("/", source.source.package, ".txt");
    const auto write = [&](const char* folder, const std::string& text) {
      return text.empty() ? Status::ok() : write_file_atomic(cat(output_dir, folder, name), text);
    };
    TANDEM_RETURN_IF_ERROR(write("/texts", texts.train));
    TANDEM_RETURN_IF_ERROR(write("/held-out-documents", texts.held_out));
    TANDEM_RETURN_IF_ERROR(write("/held-out", texts.held_out_joined));
    const SourceCounts& found = builder.reports().back().counts;
    progress(cat(source.source.package, ": ", found.documents_out, " of ", found.documents_in, " documents, ",
                 found.bytes_out, " of ", found.bytes_in, " bytes"));
  }
  if (recipe.sample_examples > 0) {
    auto sample = chat_sample(recipe);
    if (!sample.is_ok()) return sample.status();
    TANDEM_RETURN_IF_ERROR(write_file_atomic(output_dir + "/texts/chat-sample.txt", sample.value()));
  }
  TANDEM_RETURN_IF_ERROR(write_file_atomic(output_dir + "/manifest.json", builder.manifest_json()));
  return counts;
}

Result<std::vector<std::string>> read_text_documents(const std::string& path) {
  auto file = read_file(path, "a file of texts");
  if (!file.is_ok()) return file.status();
  std::vector<std::string> out;
  std::string_view rest = file.value();
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(kDocumentEnd), rest.size());
    if (end > 0) out.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

}  // namespace tandem
