#include "text/base64.h"

#include <array>
#include <cstdint>

namespace tandem {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNotInAlphabet = 0xFF;

constexpr std::array<uint8_t, 256> make_values() {
  std::array<uint8_t, 256> values{};
  values.fill(kNotInAlphabet);
  for (size_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  return values;
}
constexpr auto kValues = make_values();

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  const std::string_view digits = text.substr(0, text.size() - padding);
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : digits) {
    const uint8_t value = kValues[static_cast<uint8_t>(c)];
    if (value == kNotInAlphabet) return std::nullopt;
    bits = bits << 6 | value;
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      out.push_back(static_cast<char>(bits >> num_bits & 0xFF));
    }
  }
  if ((bits & ((1u << num_bits) - 1)) != 0) return std::nullopt;
  return out;
}

}  // namespace tandem
