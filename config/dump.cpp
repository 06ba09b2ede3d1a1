#include "config/dump.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/fields.h"
#include "config/overloaded.h"

namespace troupe::config {
namespace {

using JsonValue = nlohmann::json;

/// Numbers, switches, lists and maps keep their JSON type; fields with a text form become strings.
JsonValue value_of(const Field& field) {
  return std::visit(Overloaded{[](std::optional<bool>* p) { return *p ? JsonValue(**p) : JsonValue(); },
                               [](std::optional<int>* p) { return *p ? JsonValue(**p) : JsonValue(); },
                               [&](const EnumMember&) { return JsonValue(show_value(field)); },
                               [](ByteCount b) { return JsonValue(*b.value); },
                               [&](Rate) { return JsonValue(show_value(field)); },
                               [](const JsonText& j) { return JsonValue(*j.text); },
                               [](auto* member) { return JsonValue(*member); }},
                    field.slot);
}

bool assign(const Field& field, const JsonValue& value) {
  const auto text = [&] {
    return value.is_string() && set_value(field, value.get_ref<const std::string&>()).ok();
  };
  const auto take = [&](auto& member) {
    member = value.get<std::decay_t<decltype(member)>>();
    return true;
  };
  return std::visit(Overloaded{[&](std::optional<bool>* p) {
                                 if (value.is_null()) return p->reset(), true;
                                 return value.is_boolean() ? (*p = value.get<bool>(), true) : false;
                               },
                               [&](std::optional<int>* p) {
                                 if (value.is_null()) return p->reset(), true;
                                 return value.is_number_integer() ? (*p = value.get<int>(), true) : false;
                               },
                               [&](const EnumMember&) { return text(); },
                               [&](ByteCount b) { return value.is_number_integer() && take(*b.value); },
                               [&](Rate) { return text(); },
                               [&](const JsonText& j) {
                                 if (!value.is_string() || !take(*j.text)) return false;
                                 if (j.read) j.read();
                                 return true;
                               },
                               [&](bool* p) { return value.is_boolean() && take(*p); },
                               [&](int* p) { return value.is_number_integer() && take(*p); },
                               [&](std::int64_t* p) { return value.is_number_integer() && take(*p); },
                               [&](double* p) { return value.is_number() && take(*p); },
                               [&](std::string* p) { return value.is_string() && take(*p); },
                               [&](auto* container) { return take(*container); }},
                    field.slot);
}

std::string dump(const Options& options, bool secrets) {
  Options copy = options;  // fields need a mutable object to point to
  JsonValue out = JsonValue::object();
  for (const Field& field : fields(copy)) {
    const bool hide = field.secret && !secrets && !show_value(field).empty();
    out[std::string(field.name)] = hide ? JsonValue("***") : value_of(field);
  }
  // A path may contain bytes that are not UTF-8; the dump must not throw.
  return out.dump(-1, ' ', false, JsonValue::error_handler_t::replace);
}

}  // namespace

std::string to_json(const Options& options) { return dump(options, true); }

Status check_utf8(const std::vector<Field>& fields) {
  for (const Field& field : fields) {
    try {
      value_of(field).dump();
    } catch (const JsonValue::exception&) {
      return invalid("--" + std::string(field.name) + ": got a text that is not UTF-8, expected one that is",
                     std::string(field.name), "invalid_value");
    }
  }
  return {};
}

std::string to_public_json(const Options& options) { return dump(options, false); }

std::string to_config_file(const Options& options) {
  Options copy = options;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Field& field : fields(copy)) {
    const bool of_one_start =
        field.name == "config" || field.name == "dry-run" || field.name == "dump-config";
    if (field.hidden || field.secret || of_one_start) continue;
    JsonValue value = value_of(field);
    if (const auto* const* map = std::get_if<std::map<std::string, std::string>*>(&field.slot)) {
      value = JsonValue::array();  // as a config file writes it
      for (const auto& [name, text] : **map) value.push_back(name + "=" + text);
    }
    const bool unset =
        value.is_null() || ((value.is_string() || value.is_structured()) && show_value(field).empty());
    if (!unset) out[std::string(field.name)] = value;
  }
  return out.dump(2, ' ', false, JsonValue::error_handler_t::replace) + "\n";
}

Result<Options> from_json(std::string_view text) {
  const JsonValue object = JsonValue::parse(text, nullptr, false);
  if (!object.is_object()) return invalid("the options are not a JSON object");
  Options options;
  const std::vector<Field> all = fields(options);
  for (const auto& [name, value] : object.items()) {
    const auto field = std::find_if(all.begin(), all.end(), [&](const Field& f) { return f.name == name; });
    if (field == all.end()) return invalid("unknown option \"" + name + "\"", name);
    bool fine = false;
    try {
      fine = assign(*field, value);
    } catch (const JsonValue::exception&) {
      fine = false;
    }
    if (!fine) return invalid("option \"" + name + "\": got " + value.dump().substr(0, 80), name);
  }
  return options;
}

}  // namespace troupe::config
