#include "corpus/packed_sequences.h"

#include <algorithm>

#include "base/cat.h"
#include "base/check.h"

namespace tandem {

Result<TokenDataset> TokenDataset::open(std::span<const std::string> paths) {
  if (paths.empty()) return Status::invalid("token shards: expected the path of one or more, found none");
  TokenDataset dataset;
  for (const std::string& path : paths) {
    auto shard = TokenShard::open(path);
    if (!shard.is_ok()) return shard.status();
    const int64_t expected = dataset.shards_.empty() ? shard.value().vocab_size() : dataset.vocab_size();
    if (shard.value().vocab_size() != expected) {
      return Status::invalid(cat(path, ": expected the vocabulary size of ", dataset.shards_.front().path(), ", ",
                                 expected, ", found ", shard.value().vocab_size()));
    }
    dataset.token_base_.push_back(dataset.num_tokens() + shard.value().num_tokens());
    dataset.document_base_.push_back(dataset.num_documents() + shard.value().num_documents());
    dataset.shards_.push_back(std::move(shard).value());
  }
  return dataset;
}

size_t TokenDataset::shard_of(const std::vector<uint64_t>& base, uint64_t index) const {
  TANDEM_CHECK(index < base.back(), "a token or a document of the shards");
  return static_cast<size_t>(std::upper_bound(base.begin(), base.end(), index) - base.begin()) - 1;
}

TokenRange TokenDataset::document(uint64_t d) const {
  const size_t s = shard_of(document_base_, d);
  const TokenRange range = shards_[s].document(d - document_base_[s]);
  return {range.begin + token_base_[s], range.end + token_base_[s]};
}

uint64_t TokenDataset::document_of(uint64_t token) const {
  const size_t s = shard_of(token_base_, token);
  return document_base_[s] + shards_[s].document_of(token - token_base_[s]);
}

int32_t TokenDataset::token(uint64_t t) const {
  const size_t s = shard_of(token_base_, t);
  return shards_[s].token(t - token_base_[s]);
}

bool TokenDataset::is_trained(uint64_t t) const {
  const size_t s = shard_of(token_base_, t);
  return shards_[s].is_trained(t - token_base_[s]);
}

void TokenDataset::read(uint64_t first, std::span<int32_t> tokens, std::span<uint8_t> trained) const {
  TANDEM_CHECK(tokens.size() == trained.size(), "a mark for every token");
  while (!tokens.empty()) {
    const size_t s = shard_of(token_base_, first);
    const size_t count = std::min<uint64_t>(tokens.size(), token_base_[s + 1] - first);
    shards_[s].read_tokens(first - token_base_[s], tokens.first(count));
    for (size_t i = 0; i < count; ++i) trained[i] = shards_[s].is_trained(first - token_base_[s] + i);
    first += count;
    tokens = tokens.subspan(count);
    trained = trained.subspan(count);
  }
}

PackedSequences::PackedSequences(const TokenDataset& dataset, int64_t length, PackMode mode, int32_t pad_id)
    : dataset_(&dataset), length_(length), mode_(mode), pad_id_(pad_id) {}

Result<PackedSequences> PackedSequences::create(const TokenDataset& dataset, int64_t length, PackMode mode,
                                                int32_t pad_id) {
  if (length < 2 || length > INT32_MAX) {
    return Status::invalid(cat("sequence length: expected 2 to ", INT32_MAX, ", found ", length));
  }
  if (pad_id < 0 || pad_id >= dataset.vocab_size()) {
    return Status::invalid(cat("pad id: expected 0 to ", dataset.vocab_size() - 1, ", found ", pad_id));
  }
  PackedSequences sequences(dataset, length, mode, pad_id);
  if (mode == PackMode::kStream) {
    sequences.num_packed_tokens_ = dataset.num_tokens();
    sequences.num_sequences_ =
        (dataset.num_tokens() + static_cast<uint64_t>(length) - 1) / static_cast<uint64_t>(length);
    return sequences;
  }
  sequences.pack_documents();
  if (sequences.num_sequences_ == 0) {
    return Status::invalid(cat("sequence length ", length, ": expected a document that fits, all ",
                               dataset.num_documents(), " are longer"));
  }
  return sequences;
}

void PackedSequences::pack_documents() {
  struct Open {
    uint64_t room;
    std::vector<uint64_t> documents;
  };
  std::vector<Open> open;
  first_document_ = {0};
  const auto close = [&](size_t i) {
    documents_.insert(documents_.end(), open[i].documents.begin(), open[i].documents.end());
    first_document_.push_back(documents_.size());
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const auto length = static_cast<uint64_t>(length_);
  for (uint64_t d = 0; d < dataset_->num_documents(); ++d) {
    const uint64_t size = dataset_->document(d).size();
    if (size > length) {
      ++num_left_out_;
      continue;
    }
    num_packed_tokens_ += size;
    size_t best = open.size();
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].room >= size && (best == open.size() || open[i].room < open[best].room)) best = i;
    }
    if (best == open.size()) {
      if (open.size() == kOpenSequences) {
        close(static_cast<size_t>(std::ranges::min_element(open, {}, &Open::room) - open.begin()));
      }
      best = open.size();
      open.push_back({length, {}});
    }
    open[best].room -= size;
    open[best].documents.push_back(d);
    if (open[best].room == 0) close(best);
  }
  while (!open.empty()) close(0);
  num_sequences_ = first_document_.size() - 1;
}

double PackedSequences::fill() const {
  return static_cast<double>(num_packed_tokens_) / (static_cast<double>(num_sequences_) * static_cast<double>(length_));
}

// Copies the tokens of `piece` and their targets; the document goes on to `document_end`.
void PackedSequences::append_piece(TokenRange piece, uint64_t document_end, PackedSequence& out) const {
  const uint64_t end = std::min(piece.end + 1, document_end);  // one token more for the last target
  std::vector<int32_t> tokens(end - piece.begin);
  std::vector<uint8_t> trained(tokens.size());
  dataset_->read(piece.begin, tokens, trained);
  for (size_t i = 0; i < piece.size(); ++i) {
    out.tokens.push_back(tokens[i]);
    out.targets.push_back(i + 1 < tokens.size() && trained[i + 1] != 0 ? tokens[i + 1] : kNoTarget);
  }
  out.cu_seqlens.push_back(static_cast<int32_t>(out.tokens.size()));
}

void PackedSequences::read(uint64_t index, PackedSequence& out) const {
  TANDEM_CHECK(index < num_sequences_, "a sequence of the packing");
  out.tokens.clear();
  out.targets.clear();
  out.cu_seqlens.assign(1, 0);
  if (mode_ == PackMode::kWholeDocuments) {
    for (uint64_t i = first_document_[index]; i < first_document_[index + 1]; ++i) {
      const TokenRange document = dataset_->document(documents_[i]);
      append_piece(document, document.end, out);
    }
  } else {
    uint64_t begin = index * static_cast<uint64_t>(length_);
    const uint64_t end = std::min(begin + static_cast<uint64_t>(length_), dataset_->num_tokens());
    for (uint64_t d = dataset_->document_of(begin); begin < end; ++d) {
      const uint64_t document_end = dataset_->document(d).end;
      append_piece({begin, std::min(end, document_end)}, document_end, out);
      begin = std::min(end, document_end);
    }
  }
  out.num_valid = static_cast<int64_t>(out.tokens.size());
  if (out.num_valid == length_) return;
  out.tokens.resize(static_cast<size_t>(length_), pad_id_);
  out.targets.resize(static_cast<size_t>(length_), kNoTarget);
  out.cu_seqlens.push_back(static_cast<int32_t>(length_));
}

}  // namespace tandem
