#include "config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/cat.h"

namespace tandem::app {
namespace {

bool is_flag_name(const std::string& name) { return name != "help" && name != "config"; }

Status apply(CLI::App& command, const std::string& path, const CLI::ConfigItem& item) {
  CLI::Option* option =
      item.parents.empty() && is_flag_name(item.name) ? command.get_option_no_throw("--" + item.name) : nullptr;
  if (option == nullptr) {
    return Status::invalid(cat(path, ": ", item.fullname(), " is not a flag of ", command.get_name(),
                               "; expected the name of one, as in --help, without dashes"));
  }
  if (option->count() > 0) return Status::ok();  // the command line has the last word
  try {
    if (option->get_items_expected_max() == 0) {  // a switch
      const std::string value = item.inputs.empty() ? "true" : item.inputs.front();
      const int64_t is_on = CLI::detail::to_flag_value(value);
      if (is_on > 0) option->add_result("true");
      if (is_on <= 0) return Status::ok();
    } else {
      for (const std::string& input : item.inputs) option->add_result(input);
    }
    option->run_callback();
  } catch (const CLI::Error& error) {
    return Status::invalid(cat(path, ": ", item.name, ": ", error.what()));
  } catch (const std::invalid_argument&) {
    return Status::invalid(cat(path, ": ", item.name, ": expected true or false, found \"", item.inputs.front(), "\""));
  }
  return Status::ok();
}

}  // namespace

Status apply_config_file(CLI::App& command, const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return Status::io(cat(path, ": cannot be read: expected a TOML or INI file of flags"));
  }
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(text);
  } catch (const CLI::Error& error) {
    return Status::invalid(cat(path, ": ", error.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // the parser's marks of a section
    TANDEM_RETURN_IF_ERROR(apply(command, path, item));
  }
  return Status::ok();
}

}  // namespace tandem::app
