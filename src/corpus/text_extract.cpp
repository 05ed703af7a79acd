#include "corpus/text_extract.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/cat.h"

namespace tandem {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 14> kSkippedElements = {"head",  "script", "style",   "pre",   "table",
                                                               "title", "nav",    "footer",  "code",  "screen",
                                                               "info",  "media",  "comment", "credit"};
constexpr std::array<std::string_view, 25> kBlockElements = {
    "p",  "li", "dd", "dt", "h1",      "h2",      "h3",   "h4",   "h5",   "h6",   "blockquote", "div", "ul",
    "ol", "br", "hr", "tr", "section", "article", "item", "note", "list", "para", "steps",      "body"};
struct Entity {
  std::string_view name;
  std::string_view text;
};
constexpr std::array<Entity, 16> kEntities = {{{"amp", "&"},
                                               {"lt", "<"},
                                               {"gt", ">"},
                                               {"quot", "\""},
                                               {"apos", "'"},
                                               {"nbsp", " "},
                                               {"mdash", " - "},
                                               {"ndash", "-"},
                                               {"hellip", "..."},
                                               {"lsquo", "'"},
                                               {"rsquo", "'"},
                                               {"ldquo", "\""},
                                               {"rdquo", "\""},
                                               {"eacute", "é"},
                                               {"egrave", "è"},
                                               {"copy", "(c)"}}};

void append_utf8(std::string& out, uint32_t c) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 63));
    put(0x80 | (c >> 6 & 63));
    put(0x80 | (c & 63));
  }
}

// Appends the entity that begins at text[at], an '&', and returns the place behind it; an unknown one stays as it is.
size_t append_entity(std::string& out, std::string_view text, size_t at) {
  const size_t end = text.find(';', at);
  if (end == std::string_view::npos || end - at > 10) {
    out += '&';
    return at + 1;
  }
  std::string_view name = text.substr(at + 1, end - at - 1);
  if (name.starts_with('#')) {
    name.remove_prefix(1);
    const bool is_hex = name.starts_with('x') || name.starts_with('X');
    if (is_hex) name.remove_prefix(1);
    uint32_t code = 0;
    const auto [last, error] = std::from_chars(name.data(), name.data() + name.size(), code, is_hex ? 16 : 10);
    const bool is_scalar = code != 0 && code < 0x110000 && !(code >= 0xD800 && code < 0xE000);
    if (error == std::errc{} && last == name.data() + name.size() && is_scalar) append_utf8(out, code);
    return end + 1;
  }
  for (const Entity& entity : kEntities) {
    if (entity.name == name) out += entity.text;
  }
  return end + 1;
}

// Walks the tags of a page and collects the text between them.
class HtmlReader {
 public:
  explicit HtmlReader(std::string_view html) : html_(html) {}

  std::string read() {
    while (at_ < html_.size()) {
      if (html_[at_] == '<') {
        read_tag();
      } else if (html_[at_] == '&') {
        std::string entity;
        at_ = append_entity(entity, html_, at_);
        append(entity);
      } else {
        append(html_.substr(at_, 1));
        ++at_;
      }
    }
    while (!out_.empty() && is_space(out_.back())) out_.pop_back();
    return std::move(out_);
  }

 private:
  void append(std::string_view text) {
    if (depth_ > 0) return;
    for (const char c : text) {
      if (!is_space(c)) {
        out_ += c;
      } else if (!out_.empty() && !is_space(out_.back())) {
        out_ += ' ';
      }
    }
  }

  void read_tag() {
    if (html_.substr(at_).starts_with("<!--")) {
      const size_t end = html_.find("-->", at_);
      at_ = end == std::string_view::npos ? html_.size() : end + 3;
      return;
    }
    const size_t end = html_.find('>', at_);
    if (end == std::string_view::npos) {
      at_ = html_.size();
      return;
    }
    std::string_view tag = html_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const bool closes = tag.starts_with('/');
    if (closes) tag.remove_prefix(1);
    const bool is_empty = tag.ends_with('/');
    std::string name;
    for (const char c : tag) {
      if (!is_letter(c) && !(c >= '0' && c <= '9')) break;
      name += lower(c);
    }
    const bool is_navigation = !closes && depth_ == 0 && tag.find("class=\"nav") != std::string_view::npos;
    if (depth_ > 0) {
      if (name == skipped_ && !is_empty) depth_ += closes ? -1 : 1;
    } else if (!closes && !is_empty && (contains(kSkippedElements, name) || is_navigation)) {
      skipped_ = name;
      depth_ = 1;
    }
    if (!closes && (name == "script" || name == "style")) {  // raw text: a '<' in it begins no tag
      at_ = std::min(html_.find(cat("</", name), at_), html_.size());
    }
    if (contains(kBlockElements, name) && depth_ == 0 && !out_.empty() && !out_.ends_with("\n\n")) out_ += "\n\n";
  }

  std::string_view html_;
  size_t at_ = 0;
  std::string out_;
  std::string skipped_;
  int depth_ = 0;
};

// Without […] and the braces of {…}; runs of white space become one space.
std::string plain_definition(std::string_view text) {
  std::string out;
  int depth = 0;
  for (const char c : text) {
    if (c == '[') ++depth;
    if (depth == 0 && c != '{' && c != '}') {
      if (!is_space(c)) {
        out += c;
      } else if (!out.empty() && out.back() != ' ') {
        out += ' ';
      }
    }
    if (c == ']' && depth > 0) --depth;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// "Word \Word\, n. [L.] definition" → "Word: definition"
std::string dictd_entry(std::string_view entry) {
  const size_t first = entry.find('\\');
  const size_t second = first == std::string_view::npos ? first : entry.find('\\', first + 1);
  const size_t line = entry.find('\n');
  if (second == std::string_view::npos || first > line || line == std::string_view::npos) return "";
  // The head, with its pronunciation and etymology, ends with the first line that leaves no bracket open.
  size_t begin = second;
  for (int depth = 0; begin < entry.size(); ++begin) {
    const char c = entry[begin];
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (c == '\n' && depth <= 0) break;
  }
  if (begin >= entry.size()) return "";
  const std::string definition = plain_definition(entry.substr(begin + 1));
  if (definition.size() < 30) return "";
  std::string word = plain_definition(entry.substr(0, first));
  return cat(word, ": ", definition);
}

std::vector<std::string> dictd_documents(std::string_view file, int64_t entries_per_document) {
  std::vector<std::string> documents;
  std::string document;
  int64_t entries = 0;
  const auto end_document = [&] {
    if (!document.empty()) documents.push_back(std::move(document));
    document.clear();
    entries = 0;
  };
  size_t begin = 0;
  while (begin < file.size()) {
    size_t end = begin;  // an entry ends before an empty line with a line behind it that is not indented
    while (true) {
      end = file.find("\n\n", end);
      if (end == std::string_view::npos || end + 2 >= file.size()) {
        end = file.size();
        break;
      }
      if (!is_space(file[end + 2])) break;
      end += 2;
    }
    if (const std::string text = dictd_entry(file.substr(begin, end - begin)); !text.empty()) {
      document += cat(text, "\n\n");
      if (++entries == entries_per_document) end_document();
    }
    begin = std::min(end + 2, file.size());
  }
  end_document();
  return documents;
}

// "00039021 04 n 01 interaction 0 … | a mutual action; \"an example\"" → "Interaction means a mutual action. …"
std::string wordnet_sentence(std::string_view line) {
  if (line.starts_with(' ')) return "";
  const size_t bar = line.find(" | ");
  if (bar == std::string_view::npos) return "";
  std::array<std::string_view, 5> fields;  // offset, file, type, number of words, first word
  std::string_view rest = line.substr(0, bar);
  for (std::string_view& field : fields) {
    const size_t space = rest.find(' ');
    if (space == std::string_view::npos) return "";
    field = rest.substr(0, space);
    rest.remove_prefix(space + 1);
  }
  std::string word(fields[4].substr(0, fields[4].find('(')));
  std::ranges::replace(word, '_', ' ');
  std::string gloss = plain_definition(line.substr(bar + 3));
  const size_t example = gloss.find("; \"");
  std::string out = cat("To be or do \"", word, "\": ");
  if (fields[2] == "n") out = cat(word, " is ");
  if (fields[2] == "v") out = cat("to ", word, " is to ");
  if (fields[2] == "a" || fields[2] == "s" || fields[2] == "r") out = cat(word, " means ");
  out += gloss.substr(0, example);
  out += '.';
  if (example != std::string::npos) out += cat(" For example: ", gloss.substr(example + 2), ".");
  if (out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 32);
  return out;
}

std::vector<std::string> wordnet_documents(std::string_view file, int64_t entries_per_document) {
  std::vector<std::string> documents;
  std::string document;
  int64_t entries = 0;
  while (!file.empty()) {
    const size_t end = std::min(file.find('\n'), file.size());
    const std::string sentence = wordnet_sentence(file.substr(0, end));
    file.remove_prefix(std::min(end + 1, file.size()));
    if (!sentence.empty()) document += cat(sentence, "\n\n");
    if (sentence.empty() || ++entries < entries_per_document) continue;
    documents.push_back(std::move(document));
    document.clear();
    entries = 0;
  }
  if (!document.empty()) documents.push_back(std::move(document));
  return documents;
}

bool reads_as_prose(std::string_view paragraph) {
  if (paragraph.size() < 60) return false;
  size_t letters = 0;
  size_t words = 0;
  for (size_t i = 0; i < paragraph.size(); ++i) {
    letters += is_letter(paragraph[i]) || paragraph[i] == ' ' || static_cast<unsigned char>(paragraph[i]) >= 0x80;
    words += paragraph[i] == ' ';
  }
  if (letters * 100 < paragraph.size() * 88 || words * 10 < paragraph.size()) return false;
  const size_t last = paragraph.find_last_of(".!?:;");
  return last != std::string_view::npos && last + 4 >= paragraph.size();
}

}  // namespace

std::optional<TextFormat> text_format_of(std::string_view name) {
  if (name == "text") return TextFormat::kText;
  if (name == "html") return TextFormat::kHtml;
  if (name == "dictd") return TextFormat::kDictd;
  if (name == "wordnet") return TextFormat::kWordnet;
  return std::nullopt;
}

std::vector<std::string> extract_documents(std::string_view file, TextFormat format, int64_t entries_per_document) {
  switch (format) {
    case TextFormat::kText: return {std::string(file)};
    case TextFormat::kHtml: return {HtmlReader(file).read()};
    case TextFormat::kDictd: return dictd_documents(file, entries_per_document);
    case TextFormat::kWordnet: return wordnet_documents(file, entries_per_document);
  }
  return {};
}

std::string paragraphs_of_prose(std::string_view text) {
  std::string out;
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (reads_as_prose(paragraph)) out += cat(out.empty() ? "" : "\n\n", paragraph);
    paragraph.clear();
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t\r\f");
    if (first == std::string_view::npos) {
      end_paragraph();
      continue;
    }
    line = line.substr(first, line.find_last_not_of(" \t\r\f") - first + 1);
    if (!paragraph.empty()) paragraph += ' ';
    bool in_space = false;
    for (const char c : line) {
      if (is_space(c)) {
        in_space = true;
        continue;
      }
      if (c == '{' || c == '}') continue;  // the braces of cross-references
      if (in_space) paragraph += ' ';
      in_space = false;
      paragraph += c;
    }
  }
  end_paragraph();
  if (!out.empty()) out += '\n';
  return out;
}

}  // namespace tandem
