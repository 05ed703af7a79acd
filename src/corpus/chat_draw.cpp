#include "corpus/chat_draw.h"

namespace tandem {

ChatSplit chat_split_of(std::string_view key) {
  // A second mix: the split must not depend on bits that another use of the hash looks at.
  return combine_bits(stable_hash(key), 0x73706C6974) % 8 == 0 ? ChatSplit::kTest : ChatSplit::kTrain;
}

std::string fill(std::string_view form, std::initializer_list<std::string_view> values) {
  std::string out;
  for (size_t i = 0; i < form.size(); ++i) {
    if (form[i] == '{' && i + 2 < form.size() && form[i + 2] == '}') {
      const auto index = static_cast<size_t>(form[i + 1] - '0');
      TANDEM_CHECK(index < values.size(), "a form has a value for every place");
      out += values.begin()[index];
      i += 2;
    } else {
      out += form[i];
    }
  }
  return out;
}

std::string capitalized(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

}  // namespace tandem
