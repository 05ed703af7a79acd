#include "corpus/corpus_builder.h"

#include <xxhash.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

bool is_prose_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == ' ' || static_cast<uint8_t>(c) >= 0x80;
}

struct CountField {
  const char* name;
  int64_t SourceCounts::*member;
};
constexpr std::array<CountField, 10> kCountFields = {{
    {"documents_in", &SourceCounts::documents_in},
    {"documents_out", &SourceCounts::documents_out},
    {"bytes_in", &SourceCounts::bytes_in},
    {"bytes_out", &SourceCounts::bytes_out},
    {"dropped_not_utf8", &SourceCounts::dropped_not_utf8},
    {"dropped_too_short", &SourceCounts::dropped_too_short},
    {"dropped_not_prose", &SourceCounts::dropped_not_prose},
    {"dropped_duplicate", &SourceCounts::dropped_duplicate},
    {"duplicate_paragraphs", &SourceCounts::duplicate_paragraphs},
    {"duplicate_paragraph_bytes", &SourceCounts::duplicate_paragraph_bytes},
}};

void append_counts(Json& object, const SourceCounts& counts) {
  for (const CountField& field : kCountFields) object[field.name] = counts.*field.member;
  object["invalid_bytes_removed"] = counts.cleaner.invalid_bytes;
  object["control_characters_removed"] = counts.cleaner.control_characters;
}

}  // namespace

bool SeenTexts::insert(std::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return seen_.emplace(hash.low64, hash.high64).second;
}

bool SourceCounts::operator==(const SourceCounts& other) const {
  for (const CountField& field : kCountFields) {
    if (this->*field.member != other.*field.member) return false;
  }
  return cleaner.invalid_bytes == other.cleaner.invalid_bytes &&
         cleaner.control_characters == other.cleaner.control_characters;
}

void CorpusBuilder::begin_source(CorpusSource source) { reports_.push_back({std::move(source), {}}); }

bool CorpusBuilder::is_fit(std::string_view text, SourceCounts& counts) const {
  if (static_cast<int64_t>(text.size()) < options_.min_document_bytes || text.empty()) {
    ++counts.dropped_too_short;
    return false;
  }
  int64_t num_prose = 0;
  for (const char c : text) num_prose += is_prose_byte(c);
  if (static_cast<double>(num_prose) < options_.min_letter_fraction * static_cast<double>(text.size())) {
    ++counts.dropped_not_prose;
    return false;
  }
  return true;
}

std::string CorpusBuilder::without_duplicate_paragraphs(std::string_view text, SourceCounts& counts) {
  std::string out;
  while (!text.empty()) {
    const size_t gap = text.find("\n\n");
    const std::string_view paragraph = text.substr(0, gap == std::string_view::npos ? gap : gap + 1);
    text.remove_prefix(gap == std::string_view::npos ? text.size() : gap + 2);
    if (static_cast<int64_t>(paragraph.size()) >= options_.min_paragraph_bytes && !paragraphs_.insert(paragraph)) {
      ++counts.duplicate_paragraphs;
      counts.duplicate_paragraph_bytes += static_cast<int64_t>(paragraph.size());
      continue;
    }
    if (!out.empty()) out += '\n';
    out += paragraph;
  }
  return out;
}

std::optional<std::string> CorpusBuilder::add_document(std::string_view raw) {
  TANDEM_CHECK(!reports_.empty(), "a source has begun");
  SourceCounts& counts = reports_.back().counts;
  ++counts.documents_in;
  counts.bytes_in += static_cast<int64_t>(raw.size());
  const auto cleaned = clean_text(raw, options_.cleaner, counts.cleaner);
  if (!cleaned) {
    ++counts.dropped_not_utf8;
    return std::nullopt;
  }
  if (!is_fit(*cleaned, counts)) return std::nullopt;
  if (!documents_.insert(*cleaned)) {
    ++counts.dropped_duplicate;
    return std::nullopt;
  }
  std::string text = without_duplicate_paragraphs(*cleaned, counts);
  if (text.size() != cleaned->size() && !is_fit(text, counts)) return std::nullopt;
  ++counts.documents_out;
  counts.bytes_out += static_cast<int64_t>(text.size());
  return text;
}

SourceCounts CorpusBuilder::totals() const {
  SourceCounts total;
  for (const SourceReport& report : reports_) {
    for (const CountField& field : kCountFields) total.*field.member += report.counts.*field.member;
    total.cleaner.invalid_bytes += report.counts.cleaner.invalid_bytes;
    total.cleaner.control_characters += report.counts.cleaner.control_characters;
  }
  return total;
}

std::string CorpusBuilder::manifest_json() const {
  Json manifest = Json::object();
  manifest["sources"] = Json::array();
  for (const SourceReport& report : reports_) {
    Json entry = {{"package", report.source.package},
                  {"version", report.source.version},
                  {"license", report.source.license},
                  {"origin", report.source.origin}};
    append_counts(entry, report.counts);
    manifest["sources"].push_back(std::move(entry));
  }
  append_counts(manifest["totals"], totals());
  manifest["rules"] = {
      {"invalid_utf8", options_.cleaner.invalid_utf8 == InvalidUtf8::kRefuse ? "refuse" : "drop_bytes"},
      {"collapse_spaces", options_.cleaner.collapse_spaces},
      {"min_document_bytes", options_.min_document_bytes},
      {"min_letter_fraction", options_.min_letter_fraction},
      {"min_paragraph_bytes", options_.min_paragraph_bytes}};
  return manifest.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tandem
