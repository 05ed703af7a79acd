#include "corpus/shard_documents.h"

#include <vector>

#include "base/check.h"
#include "corpus/stable_random.h"

namespace tandem {

Status add_text_document(TokenShardWriter& writer, const Tokenizer& tokenizer, std::string_view text) {
  const auto end = tokenizer.control_id("[EOS]");
  if (!end) return Status::unsupported("tokenizer: expected the control name [EOS], which ends a document");
  std::vector<TokenId> ids = tokenizer.encode_text(text);
  ids.push_back(*end);
  std::vector<uint8_t> loss;
  if (writer.mask() == LossMask::kPerToken) loss.assign(ids.size(), 1);
  return writer.add_document(ids, loss);
}

Status add_chat_document(TokenShardWriter& writer, const Tokenizer& tokenizer, const ChatExample& example) {
  auto tokens = encode_example(tokenizer, example);
  if (!tokens.is_ok()) return tokens.status();
  return writer.add_document(tokens.value().ids, tokens.value().loss);
}

bool is_held_out(std::string_view text, uint64_t one_of) {
  TANDEM_CHECK(one_of >= 1, "one text of one or more");
  return combine_bits(stable_hash(text), 0x68656C64) % one_of == 0;
}

}  // namespace tandem
