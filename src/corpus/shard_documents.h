// corpus/shard_documents.h: what becomes a document of a token shard: a text, or a conversation.
//
//   A text is its ids and [EOS] behind them, all trained (the model learns where a document ends). A conversation is
//   its ids as the API renders them, trained where encode_example() says so. Which texts are held out is decided by
//   their bytes alone: the same text is on the same side in every run. Stateless: any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "corpus/chat_example.h"
#include "corpus/token_shard_writer.h"
#include "text/tokenizer.h"

namespace tandem {

// kUnsupported when the tokenizer has no [EOS]. The writer's mask may be either kind.
Status add_text_document(TokenShardWriter& writer, const Tokenizer& tokenizer, std::string_view text);

// Into a writer with LossMask::kPerToken.
Status add_chat_document(TokenShardWriter& writer, const Tokenizer& tokenizer, const ChatExample& example);

// One text of `one_of` is held out, on average.
bool is_held_out(std::string_view text, uint64_t one_of);

}  // namespace tandem
