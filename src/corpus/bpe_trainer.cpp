#include "corpus/bpe_trainer.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <span>
#include <tuple>

#include "base/cat.h"
#include "base/check.h"
#include "corpus/stable_random.h"
#include "weights/atomic_file.h"
#include "weights/toy_tokenizer.h"

namespace tandem {
namespace {

constexpr size_t kNumBytes = 256;

using PairKey = uint64_t;  // left id << 32 | right id
constexpr PairKey pair_key(uint32_t left, uint32_t right) { return PairKey{left} << 32 | right; }

struct PairKeyHash {
  size_t operator()(PairKey key) const { return mix_bits(key); }
};

size_t num_digits(std::string_view bytes) {
  return static_cast<size_t>(std::ranges::count_if(bytes, [](char c) { return c >= '0' && c <= '9'; }));
}

// The pieces as symbols, and every adjacent pair with its count. A pair's list names the pieces it occurs in and
// perhaps more, never fewer.
class MergeState {
 public:
  MergeState(const BpeTrainerOptions& options) : options_(options) {
    for (size_t byte = 0; byte < kNumBytes; ++byte) add_token(std::string(1, static_cast<char>(byte)));
  }

  void add_piece(std::string_view piece, int64_t count) {
    const auto word = static_cast<uint32_t>(words_.size());
    words_.push_back({symbols_.size(), piece.size(), count});
    for (const char c : piece) symbols_.push_back(static_cast<uint8_t>(c));
    for (size_t i = 0; i + 1 < piece.size(); ++i) {
      change(pair_key(static_cast<uint8_t>(piece[i]), static_cast<uint8_t>(piece[i + 1])), count, word);
    }
  }

  void run() {
    push_raised();
    while (true) {
      merge_known_pairs();
      if (static_cast<int64_t>(tokens_.size()) == options_.num_ranks) return;
      const std::optional<PairKey> best = most_frequent();
      if (!best) return;
      const uint32_t id = add_token(bytes_of(*best));
      // The same bytes may also be reached by other pairs, which are merged with it.
      const std::string& bytes = tokens_[id];
      for (size_t cut = 1; cut < bytes.size(); ++cut) {
        const auto left = ids_.find(bytes.substr(0, cut));
        const auto right = ids_.find(bytes.substr(cut));
        if (left == ids_.end() || right == ids_.end()) continue;
        const PairKey key = pair_key(left->second, right->second);
        if (key != *best && pairs_.contains(key)) known_.push({id, key});
      }
      merge(*best, id);
    }
  }

  std::vector<std::string> take_tokens() { return std::move(tokens_); }

 private:
  struct Word {
    size_t begin;
    size_t size;
    int64_t count;
  };
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;
  };
  struct Candidate {
    int64_t count;
    PairKey key;
    bool operator<(const Candidate& other) const {
      return std::tie(count, other.key) < std::tie(other.count, key);  // the top: highest count, lowest key
    }
  };

  uint32_t add_token(std::string bytes) {
    const auto id = static_cast<uint32_t>(tokens_.size());
    ids_.emplace(bytes, id);
    tokens_.push_back(std::move(bytes));
    return id;
  }

  std::string bytes_of(PairKey key) const { return tokens_[key >> 32] + tokens_[static_cast<uint32_t>(key)]; }

  void change(PairKey key, int64_t delta, uint32_t word) {
    const auto found = pairs_.try_emplace(key).first;
    Pair& pair = found->second;
    pair.count += delta;
    if (delta > 0) {
      if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
      raised_.push_back(key);
    } else if (pair.count == 0) {
      pairs_.erase(found);
    }
  }

  // Offers the pairs whose count rose since the last call to the heap that they belong to.
  void push_raised() {
    std::ranges::sort(raised_);
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (const PairKey key : raised_) {
      const auto pair = pairs_.find(key);
      if (pair == pairs_.end()) continue;
      if (tokens_[key >> 32].size() + tokens_[static_cast<uint32_t>(key)].size() > options_.max_token_bytes) continue;
      if (options_.single_digits && num_digits(bytes_of(key)) > 1) continue;
      if (const auto known = ids_.find(bytes_of(key)); known != ids_.end()) {
        known_.push({known->second, key});
      } else {
        candidates_.push({pair->second.count, key});
      }
    }
    raised_.clear();
  }

  void merge_known_pairs() {
    while (!known_.empty()) {
      const auto [id, key] = known_.top();
      known_.pop();
      if (pairs_.contains(key)) merge(key, id);
    }
  }

  std::optional<PairKey> most_frequent() {
    while (!candidates_.empty()) {
      const Candidate top = candidates_.top();
      candidates_.pop();
      const auto pair = pairs_.find(top.key);
      if (pair == pairs_.end()) continue;
      if (pair->second.count == top.count) {
        if (top.count < options_.min_pair_count) return std::nullopt;
        return top.key;
      }
      // A higher count has an entry of its own.
      if (pair->second.count < top.count) candidates_.push({pair->second.count, top.key});
    }
    return std::nullopt;
  }

  void merge(PairKey key, uint32_t id) {
    const std::vector<uint32_t> words = std::move(pairs_.at(key).words);
    for (const uint32_t word : words) merge_in_word(word, key, id);
    TANDEM_CHECK(!pairs_.contains(key), "a merged pair is nowhere left");
    push_raised();
  }

  void merge_in_word(uint32_t index, PairKey key, uint32_t id) {
    Word& word = words_[index];
    uint32_t* symbols = symbols_.data() + word.begin;
    const auto left = static_cast<uint32_t>(key >> 32);
    const auto right = static_cast<uint32_t>(key);
    size_t out = 0;
    for (size_t in = 0; in < word.size;) {
      if (in + 1 == word.size || symbols[in] != left || symbols[in + 1] != right) {
        symbols[out++] = symbols[in++];
        continue;
      }
      change(key, -word.count, index);
      if (out > 0) {
        change(pair_key(symbols[out - 1], left), -word.count, index);
        change(pair_key(symbols[out - 1], id), word.count, index);
      }
      if (in + 2 < word.size) {
        change(pair_key(right, symbols[in + 2]), -word.count, index);
        change(pair_key(id, symbols[in + 2]), word.count, index);
      }
      symbols[out++] = id;
      in += 2;
    }
    word.size = out;
  }

  struct Known {
    uint32_t id;
    PairKey key;
    bool operator>(const Known& other) const { return std::tie(id, key) > std::tie(other.id, other.key); }
  };

  const BpeTrainerOptions& options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<Word> words_;
  std::vector<uint32_t> symbols_;
  std::unordered_map<PairKey, Pair, PairKeyHash> pairs_;
  std::vector<PairKey> raised_;
  std::priority_queue<Candidate> candidates_;                             // an entry may be too high, never too low
  std::priority_queue<Known, std::vector<Known>, std::greater<>> known_;  // pairs whose bytes are a token
};

void append_base64(std::string& out, std::string_view bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t begin = 0; begin < bytes.size(); begin += 3) {
    uint32_t word = 0;
    for (size_t i = 0; i < 3; ++i) {
      word = word << 8 | (begin + i < bytes.size() ? static_cast<unsigned char>(bytes[begin + i]) : 0u);
    }
    const size_t digits = std::min<size_t>(3, bytes.size() - begin) + 1;
    for (size_t i = 0; i < 4; ++i) out += i < digits ? kAlphabet[word >> (18 - 6 * i) & 63] : '=';
  }
}

}  // namespace

size_t BpeTrainer::PieceHash::operator()(std::string_view text) const { return stable_hash(text); }

void BpeTrainer::add_text(std::string_view text, int64_t weight) {
  num_bytes_ += text.size();
  pre_tokenizer_.for_each_piece(text, [&](std::string_view piece) {
    const auto found = piece_counts_.find(piece);
    if (found != piece_counts_.end()) {
      found->second += weight;
    } else {
      piece_counts_.emplace(piece, weight);
    }
  });
}

Result<std::vector<std::string>> BpeTrainer::train(const BpeTrainerOptions& options) const {
  if (options.num_ranks < static_cast<int64_t>(kNumBytes) || options.num_ranks > INT32_MAX) {
    return Status::invalid(cat("ranks: expected ", kNumBytes, " to ", INT32_MAX, ", found ", options.num_ranks));
  }
  if (options.min_pair_count < 1) {
    return Status::invalid(cat("minimum pair count: expected 1 or more, found ", options.min_pair_count));
  }
  MergeState state(options);
  for (const auto& [piece, count] : piece_counts_) {
    if (piece.size() > 1 && count > 0) state.add_piece(piece, count);
  }
  state.run();
  std::vector<std::string> tokens = state.take_tokens();
  if (static_cast<int64_t>(tokens.size()) < options.num_ranks) {
    return Status::invalid(cat("text of ", num_bytes_, " bytes: expected pairs for ", options.num_ranks,
                               " ranks, found enough for ", tokens.size(), " (a pair counts from ",
                               options.min_pair_count, " occurrences on)"));
  }
  return tokens;
}

Result<TokenizerFiles> make_tokenizer_files(const std::vector<std::string>& ranks) {
  if (ranks.size() < kNumBytes) {
    return Status::invalid(cat("ranks: expected ", kNumBytes, " or more, found ", ranks.size()));
  }
  TokenizerFiles files;
  files.vocab_size = static_cast<int64_t>(ranks.size()) + 256;
  const auto control = make_toy_tokenizer(files.vocab_size);
  if (!control) return Status::invalid(cat("ranks: expected fewer than ", ranks.size()));
  files.tokenizer_config_json = control->tokenizer_config_json();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    append_base64(files.rank_file, ranks[rank]);
    files.rank_file += cat(' ', rank, '\n');
  }
  return files;
}

Status write_tokenizer_files(const std::string& dir, const TokenizerFiles& files) {
  TANDEM_RETURN_IF_ERROR(write_file_atomic(dir + "/tiktoken.model", files.rank_file));
  return write_file_atomic(dir + "/tokenizer_config.json", files.tokenizer_config_json);
}

}  // namespace tandem
