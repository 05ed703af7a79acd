// corpus/packed_sequences.h: token shards as training sequences of one length, with document boundaries.
//
//   A sequence is L tokens made of pieces of documents side by side; cu_seqlens says where they begin, so that neither
//   state nor attention crosses a border. targets[i] is the token that follows tokens[i] in the same document, or
//   kNoTarget where there is none or where the loss mask leaves it out.
//     kStream          the documents one after the other, cut every L tokens wherever that is; every token is used once
//     kWholeDocuments  no document is cut; each goes to the open sequence it fills best (best fit over kOpenSequences);
//                      one longer than L is left out and counted
//   Padding, at the end of a sequence only, is a piece of its own without targets.
//   Needs base/ and weights/mapped_file only. Immutable: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "corpus/token_shard.h"

namespace tandem {

// Several shards as one list of documents and one row of tokens, in the order given.
class TokenDataset {
 public:
  // kInvalidArgument when there is none, or when they differ in vocabulary size.
  static Result<TokenDataset> open(std::span<const std::string> paths);

  int64_t vocab_size() const { return shards_.front().vocab_size(); }
  uint64_t num_tokens() const { return token_base_.back(); }
  uint64_t num_documents() const { return document_base_.back(); }
  TokenRange document(uint64_t d) const;       // in tokens of the whole row
  uint64_t document_of(uint64_t token) const;  // token < num_tokens()
  int32_t token(uint64_t t) const;
  bool is_trained(uint64_t t) const;

  // Tokens [first, first + out.size()) and, where a target is asked for, whether they are trained; one shard look-up
  // for each shard they lie in.
  void read(uint64_t first, std::span<int32_t> tokens, std::span<uint8_t> trained) const;

 private:
  TokenDataset() = default;
  size_t shard_of(const std::vector<uint64_t>& base, uint64_t index) const;

  std::vector<TokenShard> shards_;
  std::vector<uint64_t> token_base_ = {0};  // one more than shards
  std::vector<uint64_t> document_base_ = {0};
};

inline constexpr int32_t kNoTarget = -1;

struct PackedSequence {
  std::vector<int32_t> tokens;      // [L]
  std::vector<int32_t> targets;     // [L]
  std::vector<int32_t> cu_seqlens;  // 0, …, L; strictly ascending
  int64_t num_valid = 0;            // tokens in front of the padding
};

enum class PackMode { kStream, kWholeDocuments };

class PackedSequences {
 public:
  static constexpr size_t kOpenSequences = 32;

  // `dataset` outlives the result. kInvalidArgument: a length below 2, a pad id outside the vocabulary, no document
  // that fits.
  static Result<PackedSequences> create(const TokenDataset& dataset, int64_t length, PackMode mode, int32_t pad_id);

  uint64_t size() const { return num_sequences_; }
  int64_t length() const { return length_; }
  uint64_t num_left_out() const { return num_left_out_; }  // documents longer than the length
  // Fraction of the positions of all sequences that hold tokens.
  double fill() const;

  void read(uint64_t index, PackedSequence& out) const;  // index < size(); `out` is reused

 private:
  PackedSequences(const TokenDataset& dataset, int64_t length, PackMode mode, int32_t pad_id);
  void pack_documents();
  void append_piece(TokenRange piece, uint64_t document_end, PackedSequence& out) const;

  const TokenDataset* dataset_;
  int64_t length_;
  PackMode mode_;
  int32_t pad_id_;
  uint64_t num_sequences_ = 0;
  uint64_t num_left_out_ = 0;
  uint64_t num_packed_tokens_ = 0;
  std::vector<uint64_t> first_document_;  // kWholeDocuments: of sequence s in documents_; one more than sequences
  std::vector<uint64_t> documents_;
};

}  // namespace tandem
