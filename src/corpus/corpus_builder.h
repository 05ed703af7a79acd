// corpus/corpus_builder.h: documents of several sources → a cleaned corpus without duplicates, and the manifest that
// says what went in and what was left out.
//
//   A document is cleaned (text_cleaner.h), then dropped when it is
//     not UTF-8     (and the options refuse such)
//     too short     below min_document_bytes
//     not prose     less than min_letter_fraction of its bytes are ASCII letters, spaces or part of a non-ASCII
//     character a duplicate   its cleaned bytes came before, from any source
//   and of the rest every paragraph (lines up to an empty line) of min_paragraph_bytes or more that came before, in any
//   document, is left out; shorter ones, such as rulers, stay. What remains of a document is measured again.
//   Equality is equality of the 128-bit XXH3 of the bytes: among 10^9 texts that are not made to collide, a false match
//   has a probability below 10^-20. Threading: one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "corpus/text_cleaner.h"

namespace tandem {

// The set of byte strings seen so far, by their 128-bit hash.
class SeenTexts {
 public:
  // False when an equal text came before.
  bool insert(std::string_view text);
  size_t size() const { return seen_.size(); }

 private:
  struct Hash {
    size_t operator()(const std::pair<uint64_t, uint64_t>& key) const { return key.first; }
  };
  std::unordered_set<std::pair<uint64_t, uint64_t>, Hash> seen_;
};

struct CorpusOptions {
  TextCleanerOptions cleaner;
  int64_t min_document_bytes = 200;
  double min_letter_fraction = 0.6;
  int64_t min_paragraph_bytes = 40;
};

struct CorpusSource {
  std::string package;
  std::string version;
  std::string license;
  std::string origin;  // where the package comes from: an archive, a registry
};

struct SourceCounts {
  int64_t documents_in = 0;
  int64_t documents_out = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  int64_t dropped_not_utf8 = 0;  // documents
  int64_t dropped_too_short = 0;
  int64_t dropped_not_prose = 0;
  int64_t dropped_duplicate = 0;
  int64_t duplicate_paragraphs = 0;
  int64_t duplicate_paragraph_bytes = 0;
  TextCleanerCounts cleaner;

  bool operator==(const SourceCounts&) const;
};

class CorpusBuilder {
 public:
  explicit CorpusBuilder(const CorpusOptions& options) : options_(options) {}

  // Documents from here on belong to this source.
  void begin_source(CorpusSource source);
  // The cleaned document, or nothing when it was dropped. A source must have begun.
  std::optional<std::string> add_document(std::string_view raw);

  struct SourceReport {
    CorpusSource source;
    SourceCounts counts;
  };
  const std::vector<SourceReport>& reports() const { return reports_; }
  SourceCounts totals() const;
  // {"sources": [{package, version, license, origin, documents_in, …}], "totals": {…}, "rules": {…}}
  std::string manifest_json() const;

 private:
  bool is_fit(std::string_view text, SourceCounts& counts) const;
  std::string without_duplicate_paragraphs(std::string_view text, SourceCounts& counts);

  CorpusOptions options_;
  std::vector<SourceReport> reports_;
  SeenTexts documents_;
  SeenTexts paragraphs_;
};

}  // namespace tandem
