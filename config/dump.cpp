#include "config/dump.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/fields.h"

namespace troupe::config {
namespace {

using Value = nlohmann::json;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

/// Numbers, switches, lists and maps keep their JSON type; what has a text form of its own is a text.
Value value_of(const Field& field) {
  return std::visit(
      Overloaded{[](std::optional<bool>* p) { return *p ? Value(**p) : Value(); },
                 [](std::optional<int>* p) { return *p ? Value(**p) : Value(); },
                 [&](const Choice&) { return Value(show_value(field)); },
                 [](Bytes b) { return Value(*b.value); }, [&](Rate) { return Value(show_value(field)); },
                 [](Json j) { return Value(*j.text); }, [](auto* member) { return Value(*member); }},
      field.slot);
}

bool assign(const Field& field, const Value& value) {
  const auto text = [&] {
    return value.is_string() && set_value(field, value.get_ref<const std::string&>()).ok();
  };
  const auto take = [&](auto& member) {
    member = value.get<std::decay_t<decltype(member)>>();
    return true;
  };
  return std::visit(
      Overloaded{[&](std::optional<bool>* p) {
                   if (value.is_null()) return p->reset(), true;
                   return value.is_boolean() ? (*p = value.get<bool>(), true) : false;
                 },
                 [&](std::optional<int>* p) {
                   if (value.is_null()) return p->reset(), true;
                   return value.is_number_integer() ? (*p = value.get<int>(), true) : false;
                 },
                 [&](const Choice&) { return text(); },
                 [&](Bytes b) { return value.is_number_integer() && take(*b.value); },
                 [&](Rate) { return text(); }, [&](Json j) { return value.is_string() && take(*j.text); },
                 [&](bool* p) { return value.is_boolean() && take(*p); },
                 [&](int* p) { return value.is_number_integer() && take(*p); },
                 [&](std::int64_t* p) { return value.is_number_integer() && take(*p); },
                 [&](double* p) { return value.is_number() && take(*p); },
                 [&](std::string* p) { return value.is_string() && take(*p); },
                 [&](auto* container) { return take(*container); }},
      field.slot);
}

std::string dump(const Options& options, bool secrets) {
  Options copy = options;  // a Field points to what it may change
  Value out = Value::object();
  for (const Field& field : fields(copy)) {
    const bool hide = field.secret && !secrets && !show_value(field).empty();
    out[std::string(field.name)] = hide ? Value("***") : value_of(field);
  }
  // A path may hold bytes that are no UTF-8; they must not end the process.
  return out.dump(-1, ' ', false, Value::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Options& options) { return dump(options, true); }

Status check_utf8(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    try {
      value_of(field).dump();
    } catch (const Value::exception&) {
      return invalid("--" + std::string(field.name) + ": got a text that is not UTF-8, expected one that is",
                     std::string(field.name), "invalid_value");
    }
  }
  return {};
}

std::string to_public_json(const Options& options) { return dump(options, false); }

Result<Options> from_json(std::string_view text) {
  const Value object = Value::parse(text, nullptr, false);
  if (!object.is_object()) return invalid("the options are not a JSON object");
  Options options;
  const std::vector<Field> all = fields(options);
  for (const auto& [name, value] : object.items()) {
    const auto field = std::find_if(all.begin(), all.end(), [&](const Field& f) { return f.name == name; });
    if (field == all.end()) return invalid("unknown option \"" + name + "\"", name);
    bool fine = false;
    try {
      fine = assign(*field, value);
    } catch (const Value::exception&) {
      fine = false;
    }
    if (!fine) return invalid("option \"" + name + "\": got " + value.dump().substr(0, 80), name);
  }
  return options;
}

}  // namespace troupe::config
