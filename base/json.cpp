#include "base/json.h"

#include <cmath>
#include <utility>

namespace troupe::json {
namespace {

constexpr double kMostExact = 9007199254740992.0;  // 2^53

template <class Object>
auto find(Object* object, std::string_view name) noexcept -> decltype(&object->begin()->second) {
  if (object == nullptr) return nullptr;
  for (auto& [key, value] : *object) {
    if (key == name) return &value;
  }
  return nullptr;
}

template <class Value>
Value* unless_null(Value* value) noexcept {
  return value == nullptr || value->is_null() ? nullptr : value;
}

}  // namespace

const Json* member(const Json* value, std::string_view name) noexcept {
  return value == nullptr ? nullptr : find(value->get_ptr<const Members*>(), name);
}

Json* member(Json& value, std::string_view name) noexcept { return find(object(value), name); }

const Json* given(const Json& value, std::string_view name) noexcept {
  return unless_null(member(value, name));
}

Json* given(Json& value, std::string_view name) noexcept { return unless_null(member(value, name)); }

const std::string* text(const Json* value) noexcept {
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

std::string* text(Json& value) noexcept { return value.get_ptr<std::string*>(); }

bool is(const Json* value, std::string_view characters) noexcept {
  const std::string* found = text(value);
  return found != nullptr && *found == characters;
}

std::optional<bool> boolean(const Json* value) noexcept {
  const bool* found = value == nullptr ? nullptr : value->get_ptr<const bool*>();
  return found == nullptr ? std::nullopt : std::optional(*found);
}

std::optional<double> number(const Json& value) noexcept {
  if (const auto* real = value.get_ptr<const Json::number_float_t*>()) return *real;
  // An unsigned integer is a signed one for the library, so it is asked for first.
  if (const auto* natural = value.get_ptr<const Json::number_unsigned_t*>())
    return static_cast<double>(*natural);
  if (const auto* whole = value.get_ptr<const Json::number_integer_t*>()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<std::int64_t> integer(const Json& value) noexcept {
  if (const auto* natural = value.get_ptr<const Json::number_unsigned_t*>()) {
    if (!std::in_range<std::int64_t>(*natural)) return std::nullopt;
    return static_cast<std::int64_t>(*natural);
  }
  if (const auto* whole = value.get_ptr<const Json::number_integer_t*>()) return *whole;
  const auto* real = value.get_ptr<const Json::number_float_t*>();
  if (real == nullptr || std::trunc(*real) != *real || std::abs(*real) > kMostExact) return std::nullopt;
  return static_cast<std::int64_t>(*real);
}

std::span<const Json> items(const Json& value) noexcept {
  const auto* list = value.get_ptr<const Json::array_t*>();
  return list == nullptr ? std::span<const Json>() : std::span<const Json>(*list);
}

std::span<Json> items(Json& value) noexcept {
  auto* list = value.get_ptr<Json::array_t*>();
  return list == nullptr ? std::span<Json>() : std::span<Json>(*list);
}

const Members& members(const Json& value) noexcept {
  static const Members none;
  const auto* found = value.get_ptr<const Members*>();
  return found == nullptr ? none : *found;
}

Members* object(Json& value) noexcept { return value.get_ptr<Members*>(); }

Json& put(Json& value, std::string_view name, Json member) {
  if (!value.is_object()) value = Json::object();
  if (Json* old = json::member(value, name)) return *old = std::move(member);
  return object(value)->Container::emplace_back(std::string(name), std::move(member)).second;
}

void drop(Json& value, std::string_view name) {
  if (Members* all = object(value)) all->erase(std::string(name));
}

std::optional<Json> parse(std::string_view text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return std::nullopt;
  return value;
}

std::string to_text(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace troupe::json
