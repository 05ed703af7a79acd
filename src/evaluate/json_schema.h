// evaluate/json_schema.h: a JSON value against a JSON Schema, as far as tool declarations and response formats use it.
//
//   Checked: type (one or a list), properties, required, additionalProperties, items, enum, const, minimum, maximum.
//   title, description, default, examples and keys that begin with `$` say nothing about the value. Any other keyword
//   is a fault: what is not understood does not pass. Stateless: any thread.
#pragma once

#include <string>

#include "text/json_value.h"

namespace tandem {

// Empty when the value fulfils the schema; else the first fault, beginning with the path of the value in it.
std::string schema_fault(const JsonValue& value, const JsonValue& schema);

// The same value: objects in any key order, numbers by what they amount to (20 and 20.0).
bool same_json(const JsonValue& a, const JsonValue& b);

}  // namespace tandem
