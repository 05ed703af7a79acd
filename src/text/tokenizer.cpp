#include "text/tokenizer.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "base/cat.h"
#include "base/check.h"
#include "base/read_file.h"
#include "text/bpe.h"
#include "text/control_names.h"
#include "text/pretokenizer.h"
#include "text/rank_table.h"

namespace tandem {

struct Tokenizer::Impl {
  RankTable ranks;
  ControlNames control;
  PreTokenizer pre_tokenizer;
};

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& model_dir, int64_t vocab_size) {
  auto rank_file = read_file(model_dir + "/tiktoken.model", "a tokenizer file");
  if (!rank_file.is_ok()) return rank_file.status();
  auto config = read_file(model_dir + "/tokenizer_config.json", "a tokenizer file");
  if (!config.is_ok()) return config.status();
  return from_memory(rank_file.value(), config.value(), vocab_size, model_dir + "/");
}

Result<Tokenizer> Tokenizer::from_memory(std::string_view rank_file_text, std::string_view tokenizer_config_json,
                                         int64_t vocab_size, std::string_view origin) {
  auto ranks = RankTable::parse(rank_file_text, cat(origin, "tiktoken.model"));
  if (!ranks.is_ok()) return ranks.status();
  auto control = ControlNames::parse(tokenizer_config_json, ranks.value().num_ranks(), vocab_size,
                                     cat(origin, "tokenizer_config.json"));
  if (!control.is_ok()) return control.status();
  return Tokenizer(
      std::unique_ptr<const Impl>(new Impl{std::move(ranks).value(), std::move(control).value(), PreTokenizer()}));
}

void Tokenizer::encode_text_to(std::string_view text, std::vector<TokenId>& ids) const {
  BpeEncoder encoder(impl_->ranks);
  impl_->pre_tokenizer.for_each_piece(text, [&](std::string_view piece) { encoder.encode(piece, ids); });
}

void Tokenizer::encode_control_to(std::string_view text, std::vector<TokenId>& ids) const {
  while (const auto match = impl_->control.first_in(text)) {
    encode_text_to(text.substr(0, match->position), ids);
    ids.push_back(match->id);
    text.remove_prefix(match->position + match->size);
  }
  encode_text_to(text, ids);
}

std::vector<TokenId> Tokenizer::encode_text(std::string_view text) const {
  std::vector<TokenId> ids;
  encode_text_to(text, ids);
  return ids;
}

std::vector<TokenId> Tokenizer::encode_control(std::string_view text) const {
  std::vector<TokenId> ids;
  encode_control_to(text, ids);
  return ids;
}

std::vector<std::string_view> Tokenizer::pre_tokenize(std::string_view text) const {
  std::vector<std::string_view> pieces;
  impl_->pre_tokenizer.for_each_piece(text, [&](std::string_view piece) { pieces.push_back(piece); });
  return pieces;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!contains(ids[i])) {
      return Status::invalid(cat("token ", i, ": expected an id of 0 to ", vocab_size() - 1, ", found ", ids[i].value));
    }
    if (!skip_special || !is_control(ids[i])) out += token_bytes(ids[i]);
  }
  return out;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  TANDEM_CHECK(contains(id), "a token id of this vocabulary");
  return is_control(id) ? impl_->control.name(id) : impl_->ranks.bytes(id.value);
}

std::optional<TokenId> Tokenizer::control_id(std::string_view name) const { return impl_->control.find(name); }
int64_t Tokenizer::num_ranks() const { return impl_->ranks.num_ranks(); }
int64_t Tokenizer::vocab_size() const { return impl_->ranks.num_ranks() + impl_->control.size(); }

}  // namespace tandem
