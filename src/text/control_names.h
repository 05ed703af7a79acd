// text/control_names.h: the names of the control ids and how they are found inside a text.
//
//   Immutable after construction: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace tandem {

class ControlNames {
 public:
  // Reads added_tokens_decoder; unnamed ids of [first_id, vocab_size) become <|reserved_token_{id}|>.
  static Result<ControlNames> parse(std::string_view config_json, int64_t first_id, int64_t vocab_size,
                                    std::string_view origin);

  int64_t size() const { return static_cast<int64_t>(names_.size()); }
  std::string_view name(TokenId id) const { return names_[id.value - first_id_]; }
  std::optional<TokenId> find(std::string_view name) const;

  struct Match {
    size_t position = 0;
    size_t size = 0;
    TokenId id;
  };
  // The earliest occurrence of any name in `text`, the longest name at that place.
  std::optional<Match> first_in(std::string_view text) const;

 private:
  ControlNames() = default;
  Status index(std::string_view origin);
  std::optional<Match> longest_at(std::string_view text, size_t position) const;

  int32_t first_id_ = 0;
  std::vector<std::string> names_;
  std::vector<int32_t> sorted_;          // indices into names_, by name
  std::array<bool, 256> starts_name_{};  // by first byte
};

}  // namespace tandem
