#pragma once
// Python's operators on values.
#include <string>
#include <string_view>
#include <vector>

#include "text/template/jinja/ast.h"
#include "text/template/jinja/rendering.h"

namespace troupe::jinja {

/// All binary operators but `and` and `or`, which do not evaluate both sides.
Value binary(Rendering& rendering, BinaryOp op, const Value& a, const Value& b);
Value unary(UnaryOp op, const Value& a);
bool compare(Rendering& rendering, CompareOp op, const Value& a, const Value& b);
bool contains(Rendering& rendering, const Value& container, const Value& item);

/// object.name: a method, else a key.
Value attribute(Rendering& rendering, const Value& object, std::string_view name);

/// object[index]: an element, else an attribute of that name.
Value item(Rendering& rendering, const Value& object, const Value& index);

/// object[start:stop:step]; nullptr or none for a bound left out.
Value slice(Rendering& rendering, const Value& object, const Value* start, const Value* stop,
            const Value* step);

/// What a loop over the value visits: elements, keys or characters; nothing for undefined.
std::vector<Value> items_of(Rendering& rendering, const Value& value);

/// len(); Error for a value without a length.
std::int64_t length_of(Rendering& rendering, const Value& value);

/// The characters of a text, each with its trust.
std::vector<Value> characters(Rendering& rendering, const Text& text);

/// Python's "format % arguments".
Text format_percent(Rendering& rendering, const Text& format, const std::vector<Value>& arguments);

}  // namespace troupe::jinja
