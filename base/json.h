#pragma once
// JSON values that a client has sent, read by their type.
//
// Every function is total: for a value of another type it says "nothing" and never throws, whatever the value
// is. The library's own accessors (get<>, at, value, operator[] that reads, dump, parse) throw or are
// undefined then, so files that handle such values use these instead; tools/check/check_json.py holds them to
// it.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe {

/// Objects keep the order of their members.
using Json = nlohmann::ordered_json;

namespace json {

using Members = Json::object_t;

/// The member of an object; null when there is none, or `value` is null or no object. Looks at one member
/// after another.
const Json* member(const Json* value, std::string_view name) noexcept;
inline const Json* member(const Json& value, std::string_view name) noexcept { return member(&value, name); }
Json* member(Json& value, std::string_view name) noexcept;

/// The same; null also when the member is JSON's null.
const Json* given(const Json& value, std::string_view name) noexcept;
Json* given(Json& value, std::string_view name) noexcept;

inline bool has(const Json& value, std::string_view name) noexcept { return member(value, name) != nullptr; }

/// The characters of a string; null for any other value.
const std::string* text(const Json* value) noexcept;
inline const std::string* text(const Json& value) noexcept { return text(&value); }
std::string* text(Json& value) noexcept;

/// True for a string of just these characters.
bool is(const Json* value, std::string_view characters) noexcept;
inline bool is(const Json& value, std::string_view characters) noexcept { return is(&value, characters); }

std::optional<bool> boolean(const Json* value) noexcept;
inline std::optional<bool> boolean(const Json& value) noexcept { return boolean(&value); }
/// True for JSON's true.
inline bool is_true(const Json* value) noexcept { return boolean(value).value_or(false); }

/// Any number, as the nearest double.
std::optional<double> number(const Json& value) noexcept;
/// A number without a fraction that an int64 holds; one with a point or an exponent counts up to 2^53.
std::optional<std::int64_t> integer(const Json& value) noexcept;

/// The items of a list; empty for any other value.
std::span<const Json> items(const Json& value) noexcept;
std::span<Json> items(Json& value) noexcept;

/// The members of an object, in order; empty for any other value.
const Members& members(const Json& value) noexcept;
/// The same, to be changed; null for any other value.
Members* object(Json& value) noexcept;

/// Sets a member, which is added at the end if there is none of this name. A value that is no object becomes
/// one. Returns the member.
Json& put(Json& value, std::string_view name, Json member);
/// Removes a member, if there is one.
void drop(Json& value, std::string_view name);

/// The value of a text; nothing when it is no JSON. Without bounds: for texts that were bounded before.
std::optional<Json> parse(std::string_view text);
/// Compact text. What is not UTF-8 within strings becomes U+FFFD.
std::string to_text(const Json& value);

}  // namespace json
}  // namespace troupe
