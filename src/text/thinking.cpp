#include "text/thinking.h"

#include "text/field.h"

namespace tandem {
namespace {

// What one field says; an empty optional: it says nothing.
struct Statement {
  std::optional<bool> enabled;
  std::optional<ThinkingEffort> effort;
};

void add_weaker(Statement& statement, const Statement& weaker) {
  if (!statement.enabled) statement.enabled = weaker.enabled;
  if (!statement.effort) statement.effort = weaker.effort;
}

// A portable effort name: reasoning_effort and its relatives.
Status read_portable(const JsonValue& object, std::string_view key, std::string_view path, Statement& statement) {
  const JsonValue* found = object.find_set(key);
  if (found == nullptr) return Status::ok();
  const std::string_view name = found->is_string() ? std::string_view(found->text()) : std::string_view();
  if (name == "minimal" || name == "low") {
    statement.effort = ThinkingEffort::kLow;
  } else if (name == "medium" || name == "high") {
    statement.effort = ThinkingEffort::kHigh;
  } else if (name == "xhigh" || name == "max") {
    statement.effort = ThinkingEffort::kMax;
  } else if (name == "none" || name == "off" || name == "disabled") {
    statement.enabled = false;
  } else {
    return bad_field(cat(path, key), "none, minimal, low, medium, high, xhigh or max", found);
  }
  return Status::ok();
}

// K3's own thinking_effort.
Status read_native(const JsonValue& object, std::string_view path, Statement& statement) {
  const JsonValue* found = object.find_set("thinking_effort");
  if (found == nullptr) return Status::ok();
  for (const ThinkingEffort effort : {ThinkingEffort::kLow, ThinkingEffort::kHigh, ThinkingEffort::kMax}) {
    if (found->is_string() && found->text() == effort_name(effort)) {
      statement.effort = effort;
      return Status::ok();
    }
  }
  return bad_field(cat(path, "thinking_effort"), "low, high or max", found);
}

Status read_template_kwargs(const JsonValue& request, Statement& statement) {
  const JsonValue* kwargs = request.find_set("chat_template_kwargs");
  if (kwargs == nullptr) return Status::ok();
  if (!kwargs->is_object()) return bad_field("chat_template_kwargs", "an object", kwargs);
  for (const std::string_view key : {"thinking", "enable_thinking"}) {
    if (kwargs->find_set(key) == nullptr) continue;
    bool enabled = true;
    TANDEM_RETURN_IF_ERROR(read_boolean(*kwargs, key, "chat_template_kwargs.", enabled));
    add_weaker(statement, {enabled, std::nullopt});
  }
  return read_native(*kwargs, "chat_template_kwargs.", statement);
}

Status read_thinking_field(const JsonValue& request, Statement& statement) {
  const JsonValue* thinking = request.find_set("thinking");
  if (thinking == nullptr) return Status::ok();
  if (thinking->is_boolean()) {
    statement.enabled = thinking->as_boolean();
    return Status::ok();
  }
  if (!thinking->is_object()) return bad_field("thinking", "an object or a boolean", thinking);
  Statement effort;
  TANDEM_RETURN_IF_ERROR(read_portable(*thinking, "effort", "thinking.", effort));
  if (const JsonValue* type = thinking->find_set("type")) {
    const std::string_view name = type->is_string() ? std::string_view(type->text()) : std::string_view();
    if (name == "disabled") {
      statement.enabled = false;
    } else if (name == "enabled" || name == "adaptive") {
      statement.enabled = true;
    } else {
      return bad_field("thinking.type", "enabled, adaptive or disabled", type);
    }
  }
  add_weaker(statement, effort);
  return Status::ok();
}

Status read_reasoning_fields(const JsonValue& request, Statement& statement) {
  Statement outer;
  TANDEM_RETURN_IF_ERROR(read_portable(request, "reasoning_effort", "", outer));
  Statement inner;
  if (const JsonValue* reasoning = request.find_set("reasoning")) {
    if (!reasoning->is_object()) return bad_field("reasoning", "an object", reasoning);
    TANDEM_RETURN_IF_ERROR(read_portable(*reasoning, "effort", "reasoning.", inner));
  }
  // A field that names an effort asks for thinking, so an outer `low` is not switched off by an inner `none`.
  if (outer.effort) outer.enabled = true;
  add_weaker(statement, outer);
  add_weaker(statement, inner);
  return Status::ok();
}

}  // namespace

Result<Thinking> resolve_thinking(const JsonValue& request) {
  Statement statement;
  TANDEM_RETURN_IF_ERROR(read_template_kwargs(request, statement));
  Statement native;
  TANDEM_RETURN_IF_ERROR(read_native(request, "", native));
  add_weaker(statement, native);
  Statement thinking;
  TANDEM_RETURN_IF_ERROR(read_thinking_field(request, thinking));
  add_weaker(statement, thinking);
  Statement reasoning;
  TANDEM_RETURN_IF_ERROR(read_reasoning_fields(request, reasoning));
  add_weaker(statement, reasoning);

  Thinking out;
  out.enabled = statement.enabled.value_or(true);
  if (out.enabled) out.effort = statement.effort.value_or(ThinkingEffort::kMax);
  return out;
}

Result<Thinking> bare_thinking(const JsonValue& input) {
  Thinking out;
  TANDEM_RETURN_IF_ERROR(read_boolean(input, "thinking", "", out.enabled));
  Statement native;
  TANDEM_RETURN_IF_ERROR(read_native(input, "", native));
  out.effort = native.effort;
  return out;
}

}  // namespace tandem
