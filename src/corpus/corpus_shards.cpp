#include "corpus/corpus_shards.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/thread_pool.h"
#include "corpus/index_permutation.h"
#include "corpus/shard_documents.h"
#include "weights/atomic_file.h"

namespace tandem {
namespace {

constexpr size_t kBatch = 512;            // documents encoded side by side
constexpr size_t kGapParagraphs = 20000;  // as many different ones
constexpr int64_t kProgressTokens = 4000000;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The documents of all text files of a folder, in path order.
Result<std::vector<std::string>> read_folder(const std::string& dir) {
  auto files = matching_files(dir, {"*.txt"});
  if (!files.is_ok()) return files.status();
  std::vector<std::string> out;
  for (const std::string& path : files.value()) {
    if (path.ends_with("/chat-sample.txt")) continue;
    auto documents = read_text_documents(path);
    if (!documents.is_ok()) return documents.status();
    std::ranges::move(documents.value(), std::back_inserter(out));
  }
  if (out.empty()) return Status::not_found(cat(dir, ": expected texts, found none: run the stage \"texts\" first"));
  return out;
}

// Writes the shards of one set, a new one whenever the last is full.
class ShardSet {
 public:
  ShardSet(std::string dir, std::string name, const Tokenizer& tokenizer, LossMask mask, int64_t shard_tokens,
           const ProgressLine& progress)
      : dir_(std::move(dir)), tokenizer_(tokenizer), mask_(mask), shard_tokens_(shard_tokens), progress_(progress) {
    counts_.name = std::move(name);
  }

  Status add(const ChatTokens& tokens) {
    if (!writer_) {
      const std::string path = cat(dir_, "/", counts_.name, "-", counts_.shards, ".bin");
      auto writer = TokenShardWriter::create(path, tokenizer_.vocab_size(), mask_);
      if (!writer.is_ok()) return writer.status();
      writer_.emplace(std::move(writer).value());
      ++counts_.shards;
    }
    const std::span<const uint8_t> loss = tokens.loss;
    TANDEM_RETURN_IF_ERROR(writer_->add_document(tokens.ids, mask_ == LossMask::kPerToken ? loss : loss.first(0)));
    const auto size = static_cast<int64_t>(tokens.ids.size());
    ++counts_.documents;
    counts_.tokens += size;
    counts_.longest_document = std::max(counts_.longest_document, size);
    counts_.trained_tokens += mask_ == LossMask::kNone ? size : std::ranges::count(tokens.loss, uint8_t{1});
    if (counts_.tokens >= next_line_) {
      progress_(cat(counts_.name, ": ", counts_.tokens, " tokens, ", counts_.documents, " documents"));
      next_line_ += kProgressTokens;
    }
    if (static_cast<int64_t>(writer_->num_tokens()) < shard_tokens_) return Status::ok();
    return close();
  }
  Status close() {
    if (!writer_) return Status::ok();
    const Status status = writer_->finish();
    writer_.reset();
    return status;
  }
  void leave_out() { ++counts_.left_out; }

  ShardSetCounts& counts() { return counts_; }

 private:
  std::string dir_;
  const Tokenizer& tokenizer_;
  LossMask mask_;
  int64_t shard_tokens_;
  const ProgressLine& progress_;
  ShardSetCounts counts_;
  int64_t next_line_ = kProgressTokens;
  std::optional<TokenShardWriter> writer_;
};

Status add_prose(ShardSet& set, const std::vector<std::string>& documents, const Tokenizer& tokenizer,
                 ThreadPool& pool) {
  const auto end = tokenizer.control_id("[EOS]");
  if (!end) return Status::unsupported("tokenizer: expected the control name [EOS], which ends a document");
  const IndexPermutation order(documents.size(), 0x70726F7365);
  std::vector<ChatTokens> batch(kBatch);
  for (size_t begin = 0; begin < documents.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, documents.size() - begin);
    pool.parallel_for(static_cast<int64_t>(count), [&](int64_t i, int) {
      batch[static_cast<size_t>(i)] = {};
      std::vector<TokenId>& ids = batch[static_cast<size_t>(i)].ids;
      tokenizer.encode_text_to(documents[order[begin + static_cast<size_t>(i)]], ids);
      ids.push_back(*end);
    });
    for (size_t i = 0; i < count; ++i) TANDEM_RETURN_IF_ERROR(set.add(batch[i]));
  }
  return set.close();
}

Status add_chats(ShardSet& set, const ChatSetRecipe& recipe, const std::vector<std::string>& paragraphs,
                 const Tokenizer& tokenizer, ThreadPool& pool) {
  ChatGeneratorOptions options;
  options.seed = recipe.seed;
  options.min_gap_tokens = recipe.min_gap_tokens;
  options.max_gap_tokens = recipe.max_gap_tokens;
  options.min_questions = recipe.min_questions;
  options.max_questions = recipe.max_questions;
  options.shares = recipe.shares;
  options.prose = paragraphs;
  options.tokenizer = &tokenizer;
  const ChatGenerator generator(std::move(options));
  struct Slot {
    ChatTokens tokens;
    Status status;
  };
  std::vector<Slot> batch(kBatch);
  for (uint64_t begin = 0; set.counts().tokens < recipe.tokens; begin += kBatch) {
    pool.parallel_for(static_cast<int64_t>(kBatch), [&](int64_t i, int) {
      const uint64_t index = begin + static_cast<uint64_t>(i);
      Slot& slot = batch[static_cast<size_t>(i)];
      auto tokens = encode_example(tokenizer, generator.example(generator.family_of(index), recipe.split, index));
      slot.status = tokens.status();
      if (tokens.is_ok()) slot.tokens = std::move(tokens).value();
    });
    for (Slot& slot : batch) {
      TANDEM_RETURN_IF_ERROR(slot.status);
      if (set.counts().tokens >= recipe.tokens) break;
      if (static_cast<int64_t>(slot.tokens.ids.size()) > recipe.max_document_tokens) {
        set.leave_out();
      } else {
        TANDEM_RETURN_IF_ERROR(set.add(slot.tokens));
      }
    }
    if (set.counts().documents == 0 && begin > 100 * kBatch) {
      return Status::invalid(cat(recipe.name, ": expected conversations of at most ", recipe.max_document_tokens,
                                 " tokens, all are longer: raise max_document_tokens or lower the gap"));
    }
  }
  return set.close();
}

}  // namespace

std::vector<std::string> gap_paragraphs(const std::vector<std::string>& documents, size_t limit) {
  std::vector<std::string_view> all;
  for (const std::string& document : documents) {
    std::string_view rest = document;
    while (!rest.empty()) {
      const size_t gap = std::min(rest.find('\n'), rest.size());
      const std::string_view paragraph = rest.substr(0, gap);
      rest.remove_prefix(std::min(gap + 1, rest.size()));
      if (paragraph.size() >= 80 && paragraph.size() <= 600) all.push_back(paragraph);
    }
  }
  std::vector<std::string> out;
  if (all.empty()) return out;
  const IndexPermutation order(all.size(), 0x676170);
  for (size_t i = 0; i < std::min(limit, all.size()); ++i) out.emplace_back(all[order[i]]);
  return out;
}

Result<std::vector<ShardSetCounts>> build_shards(const CorpusRecipe& recipe, const std::string& output_dir,
                                                 const Tokenizer& tokenizer, int num_threads,
                                                 const ProgressLine& progress) {
  auto train = read_folder(output_dir + "/texts");
  if (!train.is_ok()) return train.status();
  auto held_out = read_folder(output_dir + "/held-out-documents");
  if (!held_out.is_ok()) return held_out.status();
  const std::string dir = output_dir + "/shards";
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return Status::io(cat(dir, ": cannot make the folder: ", error.message()));

  ThreadPool pool(num_threads);
  std::vector<ShardSetCounts> out;
  const auto build = [&](const std::string& name, LossMask mask, int64_t shard_tokens, auto fill_set) {
    const auto start = std::chrono::steady_clock::now();
    ShardSet set(dir, name, tokenizer, mask, shard_tokens, progress);
    TANDEM_RETURN_IF_ERROR(fill_set(set));
    set.counts().seconds = seconds_since(start);
    out.push_back(set.counts());
    progress(cat(name, ": done, ", set.counts().tokens, " tokens, ", set.counts().documents, " documents, ",
                 static_cast<int64_t>(set.counts().seconds), " s"));
    return Status::ok();
  };
  TANDEM_RETURN_IF_ERROR(build("prose", LossMask::kNone, recipe.prose_shard_tokens,
                               [&](ShardSet& set) { return add_prose(set, train.value(), tokenizer, pool); }));
  TANDEM_RETURN_IF_ERROR(build("prose-test", LossMask::kNone, recipe.prose_shard_tokens,
                               [&](ShardSet& set) { return add_prose(set, held_out.value(), tokenizer, pool); }));
  const std::vector<std::string> train_gaps = gap_paragraphs(train.value(), kGapParagraphs);
  const std::vector<std::string> test_gaps = gap_paragraphs(held_out.value(), kGapParagraphs);
  for (const ChatSetRecipe& chat : recipe.chats) {
    const LossMask mask = chat.all_tokens ? LossMask::kNone : LossMask::kPerToken;
    TANDEM_RETURN_IF_ERROR(build(chat.name, mask, chat.shard_tokens, [&](ShardSet& set) {
      return add_chats(set, chat, chat.split == ChatSplit::kTest ? test_gaps : train_gaps, tokenizer, pool);
    }));
  }
  TANDEM_RETURN_IF_ERROR(write_file_atomic(dir + "/summary.json", shard_summary_json(out)));
  return out;
}

std::string shard_summary_json(const std::vector<ShardSetCounts>& sets) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const ShardSetCounts& set : sets) {
    out[set.name] = {{"shards", set.shards},
                     {"documents", set.documents},
                     {"tokens", set.tokens},
                     {"trained_tokens", set.trained_tokens},
                     {"longest_document", set.longest_document},
                     {"left_out", set.left_out}};
  }
  return out.dump(1) + "\n";
}

}  // namespace tandem
