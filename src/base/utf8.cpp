#include "base/utf8.h"

namespace tandem {
namespace {

struct LeadByte {
  uint32_t size = 0;          // 0: cannot start a sequence
  uint8_t second_low = 0x80;  // the second byte's range; every later byte is 80..BF
  uint8_t second_high = 0xBF;
};

LeadByte classify_lead(uint8_t lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};  // below A0: overlong
  if (lead == 0xED) return {3, 0x80, 0x9F};  // above 9F: surrogates
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};  // below 90: overlong
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};  // above 8F: past U+10FFFF
  return {0, 0, 0};
}

}  // namespace

Utf8Step decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const LeadByte lead = classify_lead(byte(0));
  if (lead.size == 0) return {0, 1, false, false};
  if (lead.size == 1) return {byte(0), 1, true, false};
  uint32_t code_point = byte(0) & (0x7Fu >> lead.size);
  for (uint32_t i = 1; i < lead.size; ++i) {
    if (i >= text.size()) return {0, i, false, true};
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0, i, false, false};
    code_point = code_point << 6 | (byte(i) & 0x3Fu);
  }
  return {code_point, lead.size, true, false};
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    if (!step.valid) return false;
    i += step.size;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    out.append(step.valid ? text.substr(i, step.size) : kReplacementCharacter);
    i += step.size;
  }
  return out;
}

void append_utf8(std::string& out, uint32_t code_point) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace tandem
