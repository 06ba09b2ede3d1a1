#include "http/api/fields.h"

#include <charconv>

namespace troupe::http {
namespace {

std::string shown(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

Json* Fields::find(std::string_view name) { return json::given(object_, name); }

void Fields::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void Fields::fail(std::string_view name, std::string message, std::string_view reason) {
  fail(invalid(path(name) + " " + std::move(message), path(name), std::string(reason)));
}

std::optional<double> Fields::number(std::string_view name, const Range& range) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const std::string allowed =
      std::string("must be a number ") +
      (range.open_low ? "above " + shown(range.low) + " and at most " + shown(range.high)
                      : "from " + shown(range.low) + " to " + shown(range.high)) +
      ", got " + excerpt(*value);
  const auto number = json::number(*value);
  if (!number) {
    fail(name, allowed, "invalid_type");
    return {};
  }
  if (!(*number >= range.low && *number <= range.high) ||
      (range.open_low && static_cast<float>(*number) <= range.low)) {
    fail(name, allowed, "out_of_range");
    return {};
  }
  return number;
}

std::optional<std::int64_t> Fields::integer(std::string_view name, std::int64_t low, std::int64_t high) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const auto integer = as_integer(*value, low, high);
  if (!integer) {
    fail(name,
         "must be an integer from " + std::to_string(low) + " to " + std::to_string(high) + ", got " +
             excerpt(*value),
         "out_of_range");
  }
  return integer;
}

bool Fields::boolean(std::string_view name, bool absent) {
  const Json* value = find(name);
  if (value == nullptr) return absent;
  const auto boolean = json::boolean(value);
  if (!boolean) fail(name, "must be true or false, got " + excerpt(*value), "invalid_value");
  return boolean.value_or(absent);
}

std::optional<std::string> Fields::string(std::string_view name) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const std::string* text = json::text(value);
  if (text == nullptr) {
    fail(name, "must be a string, got " + excerpt(*value), "invalid_type");
    return {};
  }
  return *text;
}

std::vector<TokenId> Fields::token_ids(std::string_view name, std::int64_t vocab_size,
                                       std::size_t max_items) {
  const Json* value = find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    fail(name, "must be a list of token ids, got " + excerpt(*value), "invalid_type");
    return {};
  }
  if (value->size() > max_items) {
    fail(name,
         "may hold at most " + std::to_string(max_items) + " token ids, got " + std::to_string(value->size()),
         "out_of_range");
    return {};
  }
  auto ids = as_token_ids(*value, path(name), vocab_size);
  if (!ids.ok()) {
    fail(ids.status());
    return {};
  }
  return std::move(*ids);
}

std::optional<std::int64_t> as_integer(const Json& value, std::int64_t low, std::int64_t high) {
  const auto integer = json::integer(value);
  if (!integer || *integer < low || *integer > high) return {};
  return integer;
}

Result<std::vector<TokenId>> as_token_ids(const Json& array, const std::string& path,
                                          std::int64_t vocab_size) {
  constexpr std::int64_t kLargest = std::numeric_limits<TokenId>::max();
  const std::int64_t last = vocab_size > 0 ? vocab_size - 1 : kLargest;
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const Json& item : json::items(array)) {
    const auto id = as_integer(item, 0, last);
    if (!id) {
      const std::string place = path + "." + std::to_string(ids.size());
      return invalid(
          place + " must be a token id from 0 to " + std::to_string(last) + ", got " + excerpt(item), place,
          "token_out_of_range");
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

}  // namespace troupe::http
