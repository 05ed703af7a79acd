// config/json_fields.h: typed reads of a JSON object's fields that collect every problem instead of stopping at the
// first. Internal to src/config.
//
//   A field that is absent or null reads as nullopt. A wrong type or range is reported, with the field's path, and
//   reads as nullopt too. Threading: one parse at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/status.h"

namespace tandem {

// The problems of one file, a line each.
class ConfigProblems {
 public:
  void add(std::string_view path, std::string_view expected, std::string_view found);
  void add_line(std::string line) { lines_.push_back(std::move(line)); }
  size_t count() const { return lines_.size(); }
  // OK without problems; else kInvalidArgument naming `origin` and listing all of them.
  Status to_status(std::string_view origin) const;

 private:
  std::vector<std::string> lines_;
};

// A short description of a JSON value for a message: the value itself when it is a scalar.
std::string describe(const nlohmann::json& value);

struct IntRange {
  int64_t min = 1;
  int64_t max = int64_t{1} << 24;
};

class JsonFields {
 public:
  // `object` may be null: every field is absent then. `path` is empty for the root.
  JsonFields(const nlohmann::json* object, std::string path, ConfigProblems& problems)
      : object_(object), path_(std::move(path)), problems_(&problems) {}

  std::string path_of(std::string_view key) const;
  const nlohmann::json* find(std::string_view key) const;  // nullptr: absent or null
  bool has(std::string_view key) const { return find(key) != nullptr; }

  std::optional<int64_t> integer(std::string_view key, IntRange range) const;
  std::optional<int64_t> required_integer(std::string_view key, IntRange range) const;
  std::optional<double> number(std::string_view key) const;  // finite
  std::optional<double> positive_number(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> text(std::string_view key) const;
  std::optional<std::vector<int64_t>> integer_list(std::string_view key, IntRange range) const;
  JsonFields object(std::string_view key) const;  // an absent or ill-typed object has no fields

  // The field, when present, must be this value.
  void expect_text(std::string_view key, std::string_view expected) const;
  void expect_boolean(std::string_view key, bool expected) const;
  void expect_integer(std::string_view key, int64_t expected) const;
  void expect_null(std::string_view key) const;

  void problem(std::string_view key, std::string_view expected) const;  // found: what is there
  void problem(std::string_view key, std::string_view expected, std::string_view found) const;
  ConfigProblems& problems() const { return *problems_; }

 private:
  const nlohmann::json* object_;
  std::string path_;
  ConfigProblems* problems_;
};

}  // namespace tandem
