// bench/tokenizer_bench.cpp: encode speed on ordinary text, on code and on 1 MB of text of every shape that makes a
// careless tokenizer quadratic. One JSON line a case: the median processor time of the repeats.
//
//   tokenizer_bench [folder with tiktoken.model and tokenizer_config.json, vocab_size]
//   Without arguments a toy vocabulary is used: the single bytes, all pairs of ASCII letters, digits and spaces,
//   frequent English and code words, and doubled runs. MB is 1e6 bytes.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/cat.h"
#include "text/tokenizer.h"

namespace {

using tandem::cat;
using tandem::Tokenizer;

constexpr size_t kTextBytes = 1'000'000;
constexpr int kRepeats = 5;

constexpr std::string_view kEnglish =
    "The tokenizer reads a text from left to right and cuts it into pieces, each of them a word with the space before "
    "it, a "
    "number of at most three digits, or a run of punctuation. It's the shape of ordinary prose: short words, long "
    "words, a "
    "name such as Copenhagen or Nakamura, the year 1987, and now and then (in brackets) an aside; don't expect "
    "more.\n\n";
constexpr std::string_view kCode =
    "for (int64_t row = 0; row < args.num_rows; ++row) {\n\tconst float* input = args.x.row(row);\n\tif (input[0] != "
    "0.25f) "
    "return Status::invalid(\"kda_decode: expected 128, found \" + std::to_string(row));\n\t\tout[row] += "
    "HTTPServer::getURLFast("
    "input, 0x1F, 1e-5);  // accumulate\n}\n\n";
constexpr std::string_view kChinese =
    "分词器从左到右读取文本，并把它切成小块。每一块是一个词、一个数字或者一串标点符号。今天是2026年8月。";

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out.push_back(i + k <= bytes.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=');
  }
  return out;
}

// Single bytes, then the prefixes of every word of the samples and runs of the pathological units: merges go on for as
// long as they would with a trained vocabulary.
std::string toy_rank_file() {
  std::vector<std::string> tokens;
  std::set<std::string> seen;
  const auto add = [&](std::string_view token) {
    if (seen.insert(std::string(token)).second) tokens.emplace_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  constexpr std::string_view kCommon = " etaoinshrdlucmfwypvbgkjqxzETAOINSHRDLU0123456789";
  for (const char first : kCommon) {
    for (const char second : kCommon) add(std::string{first, second});
  }
  for (const std::string_view text : {kEnglish, kCode, kChinese}) {
    for (size_t i = 0; i < text.size(); ++i) {
      for (size_t length = 2; length <= 8 && i + length <= text.size(); ++length) {
        const std::string_view token = text.substr(i, length);
        if (token.find(' ', 1) != std::string_view::npos) break;
        add(token);
      }
    }
  }
  for (const std::string_view unit : {"a", "A", " ", "\n", "7", "你", "\u0301"}) {
    std::string run(unit);
    for (int doubling = 0; doubling < 5; ++doubling) add(run += run);
  }
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) file += cat(base64(tokens[rank]), " ", rank, "\n");
  return file;
}

std::string repeated(std::string_view unit) {
  std::string out;
  while (out.size() < kTextBytes) out += unit;
  return out;
}

// Processor time: the encoder is one thread, and a busy machine does not change the answer.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double median_seconds(const Tokenizer& tokenizer, const std::string& text, bool control, size_t& num_tokens) {
  std::vector<double> seconds;
  std::vector<tandem::TokenId> ids;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    ids.clear();
    const double start = thread_seconds();
    if (control) {
      tokenizer.encode_control_to(text, ids);
    } else {
      tokenizer.encode_text_to(text, ids);
    }
    seconds.push_back(thread_seconds() - start);
  }
  num_tokens = ids.size();
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

struct Case {
  const char* name;
  std::string_view unit;
  bool control = false;
};

constexpr Case kCases[] = {
    {"english", kEnglish},
    {"code", kCode},
    {"chinese", kChinese},
    {"one_letter", "a"},
    {"one_capital", "A"},
    {"spaces", " "},
    {"newlines", "\n"},
    {"spaces_newline", "       \n"},
    {"mixed_han", "你好世界再见々〇"},
    {"letter_digit", "a1"},
    {"marks", "\u0301"},
    {"capital_mark", "A\u0301"},
    {"mark_then_capitals", "\u0301AAAAAAAA"},
    {"contractions", "'s'S"},
    {"sharp_s", "\u1e9e"},
    {"modifier_capitals", "\u02b0AB"},
    {"broken_utf8", "\xE4\xBD"},
    {"control_names", "<|open|>message<|sep|>", true},
    {"half_control_names", "<|reserved_token_<|", true},
};

}  // namespace

int main(int argc, char** argv) {
  const double start = thread_seconds();
  const std::string toy = argc > 2 ? "" : toy_rank_file();
  const auto tokenizer = argc > 2 ? Tokenizer::load(argv[1], std::atoll(argv[2]))
                                  : Tokenizer::from_memory(toy, R"({"added_tokens_decoder":{}})",
                                                           std::count(toy.begin(), toy.end(), '\n') + 256);
  if (!tokenizer.is_ok()) {
    std::fprintf(stderr, "tokenizer_bench: %s\n", tokenizer.status().message().c_str());
    return 1;
  }
  const double load_seconds = thread_seconds() - start;
  std::printf("{\"case\":\"load\",\"ranks\":%lld,\"seconds\":%.4f}\n",
              static_cast<long long>(tokenizer.value().num_ranks()), load_seconds);
  for (const Case& one : kCases) {
    const std::string text = repeated(one.unit);
    size_t num_tokens = 0;
    const double seconds = median_seconds(tokenizer.value(), text, one.control, num_tokens);
    std::printf("{\"case\":\"%s\",\"bytes\":%zu,\"tokens\":%zu,\"seconds\":%.4f,\"mb_s\":%.1f}\n", one.name,
                text.size(), num_tokens, seconds, static_cast<double>(text.size()) / 1e6 / seconds);
  }
  return 0;
}
