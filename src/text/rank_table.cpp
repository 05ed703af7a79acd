#include "text/rank_table.h"

#include <xxhash.h>

#include <bit>
#include <charconv>

#include "base/cat.h"
#include "text/base64.h"

namespace tandem {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 31;  // offsets are 32 bits

uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct RankLine {
  std::string bytes;
  int64_t rank = 0;
};

Result<RankLine> parse_line(std::string_view line, std::string_view origin, int64_t line_number) {
  const auto bad = [&](std::string_view what) {
    return Status::invalid(cat(origin, ": line ", line_number, ": ", what, ", found \"", line.substr(0, 80), "\""));
  };
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return bad("expected \"base64 rank\"");
  auto bytes = decode_base64(line.substr(0, space));
  if (!bytes || bytes->empty()) return bad("expected base64 of one byte or more before the space");
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (error != std::errc{} || end != digits.data() + digits.size() || digits[0] == '-') {
    return bad("expected a decimal rank after the space");
  }
  return RankLine{std::move(*bytes), rank};
}

}  // namespace

Result<RankTable> RankTable::parse(std::string_view file_text, std::string_view origin) {
  if (file_text.size() > kMaxFileBytes) {
    return Status::invalid(cat(origin, ": expected at most ", kMaxFileBytes, " bytes, found ", file_text.size()));
  }
  std::vector<RankLine> lines;
  std::vector<int64_t> line_numbers;
  int64_t line_number = 0;
  for (size_t at = 0; at < file_text.size();) {
    const size_t line_end = std::min(file_text.find('\n', at), file_text.size());
    std::string_view line = file_text.substr(at, line_end - at);
    at = line_end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    auto parsed = parse_line(line, origin, line_number);
    if (!parsed.is_ok()) return parsed.status();
    lines.push_back(std::move(parsed).value());
    line_numbers.push_back(line_number);
  }

  const auto num_ranks = static_cast<int64_t>(lines.size());
  std::vector<std::string> tokens(lines.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const int64_t rank = lines[i].rank;
    if (rank >= num_ranks) {
      return Status::invalid(cat(origin, ": line ", line_numbers[i], ": expected ranks 0 to ", num_ranks - 1,
                                 " (the file has ", num_ranks, " entries), found ", rank));
    }
    if (!tokens[rank].empty()) {
      return Status::invalid(
          cat(origin, ": line ", line_numbers[i], ": expected every rank once, found rank ", rank, " again"));
    }
    tokens[rank] = std::move(lines[i].bytes);
  }
  RankTable table;
  TANDEM_RETURN_IF_ERROR(table.store(std::move(tokens), origin));
  TANDEM_RETURN_IF_ERROR(table.index(origin));
  return table;
}

Status RankTable::store(std::vector<std::string> tokens, std::string_view origin) {
  size_t total_bytes = 0;
  for (const std::string& token : tokens) total_bytes += token.size();
  bytes_.reserve(total_bytes);
  offsets_.reserve(tokens.size() + 1);
  offsets_.push_back(0);
  for (const std::string& token : tokens) {
    bytes_ += token;
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    max_token_bytes_ = std::max(max_token_bytes_, token.size());
  }
  if (tokens.empty())
    return Status::invalid(cat(origin, ": expected an entry for each of the 256 bytes, found no entry"));
  return Status::ok();
}

Status RankTable::index(std::string_view origin) {
  slots_.resize(std::bit_ceil(static_cast<size_t>(num_ranks()) * 2));
  singles_.assign(256, kNoRank);
  pairs_.assign(65536, kNoRank);
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    const std::string_view token = bytes(rank);
    if (const int32_t other = find(token); other != kNoRank) {
      return Status::invalid(
          cat(origin, ": expected every byte string once, found ranks ", other, " and ", rank, " with the same bytes"));
    }
    const uint64_t hash = hash_of(token);
    size_t slot = hash & (slots_.size() - 1);
    while (slots_[slot].rank >= 0) slot = (slot + 1) & (slots_.size() - 1);
    slots_[slot] = {static_cast<uint32_t>(hash >> 32), rank};
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(token[i]); };
    if (token.size() == 1) singles_[byte(0)] = rank;
    if (token.size() == 2) pairs_[size_t{byte(0)} << 8 | byte(1)] = rank;
  }
  std::string missing;
  int num_missing = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (singles_[byte] != kNoRank) continue;
    if (++num_missing <= 8) missing += cat(missing.empty() ? "" : ", ", byte);
  }
  if (num_missing == 0) return Status::ok();
  return Status::invalid(cat(origin, ": expected an entry for each of the 256 single bytes, missing ", num_missing,
                             ": ", missing, num_missing > 8 ? ", …" : ""));
}

int32_t RankTable::find(std::string_view wanted) const {
  if (wanted.size() > max_token_bytes_) return kNoRank;
  const uint64_t hash = hash_of(wanted);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t slot = hash & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
    const Slot& entry = slots_[slot];
    if (entry.rank < 0) return kNoRank;
    if (entry.tag == tag && bytes(entry.rank) == wanted) return entry.rank;
  }
}

}  // namespace tandem
