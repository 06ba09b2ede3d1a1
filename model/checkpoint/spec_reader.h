#pragma once
// Typed keys of a config.json.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"

namespace troupe::model {

// Limits far above every published model; they keep every product of a spec in range.
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxHeads = 1024;

/// Reads typed keys out of one JSON object and keeps the first error; later reads then do nothing. null
/// counts as missing. Object and `where`, which begins the messages, outlive the reader.
class SpecReader {
 public:
  using JsonValue = nlohmann::json;

  SpecReader(const JsonValue& object, const std::string& where) : object_(object), where_(where) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) {
    if (!has(key)) return fail(key, "is missing"), low;
    return integer_or(key, low, low, high);
  }

  std::int64_t integer_or(const char* key, std::int64_t fallback, std::int64_t low, std::int64_t high) {
    if (!has(key)) return fallback;
    const JsonValue& value = object_[key];
    // The library compares an unsigned number as if it were signed: a huge one would count as -1.
    const bool huge =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(high);
    const bool fits = value.is_number_integer() && !huge && value >= low && value <= high;
    if (fits) return value.get<std::int64_t>();
    fail(key, "is " + shown(value) + "; allowed is a whole number from " + std::to_string(low) + " to " +
                  std::to_string(high));
    return low;
  }

  double positive_or(const char* key, double fallback) {
    if (!has(key)) return fallback;
    const JsonValue& value = object_[key];
    if (value.is_number() && std::isfinite(value.get<float>()) && value.get<float>() > 0) {
      return value.get<double>();
    }
    fail(key, "is " + shown(value) + "; allowed is a positive number");
    return fallback;
  }

  std::optional<bool> boolean(const char* key) {
    if (!has(key)) return std::nullopt;
    if (object_[key].is_boolean()) return object_[key].get<bool>();
    fail(key, "is " + shown(object_[key]) + "; allowed are true and false");
    return std::nullopt;
  }

  std::string text(const char* key) {
    if (!has(key)) return {};
    if (object_[key].is_string()) return object_[key].get<std::string>();
    fail(key, "is " + shown(object_[key]) + "; it has to be a string");
    return {};
  }

  const JsonValue& at(const char* key) const { return object_[key]; }

  void fail(const char* key, const std::string& what) {
    if (status_.ok()) status_ = invalid(where_ + ": " + key + " " + what + ".", key);
  }

  const Status& status() const { return status_; }

  static std::string shown(const JsonValue& value) {
    std::string text = value.dump(-1, ' ', true, JsonValue::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 60) + "…";
    return text;
  }

 private:
  const JsonValue& object_;
  const std::string& where_;
  Status status_;
};

}  // namespace troupe::model
