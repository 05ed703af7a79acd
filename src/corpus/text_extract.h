// corpus/text_extract.h: the readable text of a file that is more than text: what a corpus source's "format" names.
//
//   text      as it is
//   html      the text of the body by blocks (also Mallard and DocBook pages), without scripts, styles, preformatted
//             text, tables and navigation; entities resolved
//   dictd     a dictionary in dictd form: per entry the head word and its definitions; pronunciations, etymologies,
//             source marks and cross-reference braces are left out
//   wordnet   a WordNet data file: per line the words and the gloss, as a sentence
//   Prose     paragraphs_of_prose() keeps the paragraphs that read as sentences and joins their lines: a table, a
//             listing or a menu is none. What it keeps is a heuristic, the same on every machine.
//   Stateless: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

enum class TextFormat { kText, kHtml, kDictd, kWordnet };
std::optional<TextFormat> text_format_of(std::string_view name);

// The documents of one file; a dictionary gives one document for every `entries_per_document` entries.
std::vector<std::string> extract_documents(std::string_view file, TextFormat format, int64_t entries_per_document);

std::string paragraphs_of_prose(std::string_view text);

}  // namespace tandem
