#include "config/field_text.h"

namespace troupe::config {
namespace {

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (std::string_view word : words) {
    if (!out.empty()) out += '|';
    out += word;
  }
  return out;
}

}  // namespace

std::string default_text(const Field& field) {
  if (!field.when_unset.empty()) return std::string(field.when_unset);
  const std::string value = show_value(field);
  if (is_switch(field)) return value == "true" ? "on" : "off";
  return value.empty() ? "none" : value;
}

std::string placeholder(const Field& field) {
  if (is_switch(field)) return {};
  if (const auto* choice = std::get_if<EnumMember>(&field.slot)) return joined(choice->names);
  if (std::holds_alternative<JsonText>(field.slot)) return "JSON";
  if (std::holds_alternative<Rate>(field.slot)) return "N/S";
  if (std::holds_alternative<std::map<std::string, std::string>*>(field.slot)) return "NAME=VALUE";
  const bool text = std::holds_alternative<std::string*>(field.slot) ||
                    std::holds_alternative<std::vector<std::string>*>(field.slot);
  if (!text) return std::holds_alternative<double*>(field.slot) ? "X" : "N";
  return field.allowed.empty() ? "TEXT" : joined(field.allowed);
}

std::string spelling(const Field& field) {
  std::string out;
  for (std::string_view alias : field.aliases) {
    if (alias.size() <= 2) out.append("-").append(alias).append(", ");
  }
  out.append("--").append(field.name);
  const std::string value = placeholder(field);
  return value.empty() ? out : out + " " + value;
}

std::string variables_text(const Field& field) {
  std::string out = variable_name(field);
  if (!field.env.empty()) out = std::string(field.env) + ", " + out;
  return out;
}

}  // namespace troupe::config
