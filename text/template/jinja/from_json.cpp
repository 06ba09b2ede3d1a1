// Values of a request → values of a template.
#include "base/json.h"
#include "base/utf8.h"
#include "text/template/jinja/print.h"

namespace troupe::jinja {

Value from_json(const nlohmann::ordered_json& json, bool trusted, Budget& budget) {
  const Budget::Level level(budget);
  budget.step();
  switch (json.type()) {
    case nlohmann::json::value_t::string: {
      const std::string& text = *json::text(json);
      budget.made(static_cast<std::int64_t>(text.size()));
      budget.touch(text.size());
      return Value(Text(utf8::is_valid(text) ? text : utf8::to_valid(text), trusted));
    }
    case nlohmann::json::value_t::boolean: return Value(json::is_true(&json));
    case nlohmann::json::value_t::number_integer:
    case nlohmann::json::value_t::number_unsigned: {
      const auto whole = json::integer(json);  // nothing above 2^63 - 1
      return whole ? Value(*whole) : Value(json::number(json).value_or(0));
    }
    case nlohmann::json::value_t::number_float: return Value(json::number(json).value_or(0));
    case nlohmann::json::value_t::array: {
      List list;
      budget.made(static_cast<std::int64_t>(json.size() * sizeof(Value)));
      list.items.reserve(json.size());
      for (const auto& item : json) list.items.push_back(from_json(item, trusted, budget));
      return Value(std::move(list));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      budget.made(static_cast<std::int64_t>(json.size() * 2 * sizeof(Value)));
      dict.items.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        dict.items.emplace_back(Value(Text(utf8::to_valid(key), trusted)), from_json(item, trusted, budget));
      }
      return Value(std::move(dict));
    }
    default: return Value(None{});
  }
}

}  // namespace troupe::jinja
