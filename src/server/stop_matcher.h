// server/stop_matcher.h: finds the first stop string in a text that arrives in pieces.
//
//   The match that ends first counts, the longest of those that end there; how the text is cut into pieces does not
//   matter. Held back is only what may be the beginning of a stop string. O(pieces' bytes × stop strings). Pieces and
//   stop strings are valid UTF-8, and so is every text given out. One matcher serves one text, on one thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class StopMatcher {
 public:
  // `include_match`: the stop string itself belongs to the text.
  StopMatcher(const std::vector<std::string>& stops, bool include_match);

  // What became certain. After a match nothing is taken any more.
  std::string append(std::string_view text);
  // What is held back, at the end of the text.
  std::string flush();

  // The stop string that was found.
  const std::optional<std::string>& match() const { return match_; }

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [i]: the longest proper border of the first i + 1 bytes
    size_t matched = 0;          // the longest prefix that the text so far ends with
  };

  std::vector<Pattern> patterns_;
  bool include_match_;
  std::string held_;
  std::optional<std::string> match_;
};

}  // namespace tandem
