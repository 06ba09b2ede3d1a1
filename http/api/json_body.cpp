#include "http/api/json_body.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "http/api/json_text.h"

namespace troupe::http {
namespace {

Status not_json(std::size_t position) {
  return invalid("The body is not valid JSON (byte " + std::to_string(position) + ")", {}, "invalid_json");
}

Status too_deep(std::string_view field, int limit) {
  if (field == "tools") {
    return invalid("tools nests deeper than " + std::to_string(limit) + " levels", "tools", "invalid_tool");
  }
  return invalid("The body nests deeper than " + std::to_string(limit) + " levels", std::string(field),
                 "json_too_deep");
}

Status too_many(std::string_view field, std::int64_t limit) {
  const std::string_view reason = field == "logit_bias" ? "invalid_value" : "too_many_elements";
  return invalid("The body holds more than " + std::to_string(limit) + " values", std::string(field),
                 std::string(reason));
}

// Builds the value from parser events and stops the parser at the first one that exceeds the bounds. The
// library's own builder looks every new key of an ordered object up among the earlier ones, which takes
// quadratic time for a large object; here repeated keys are removed when an object ends.
class BoundedBuilder {
 public:
  explicit BoundedBuilder(const JsonBounds& bounds) : bounds_(bounds) {}

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(Json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool key(std::string& name) {
    if (open_.size() == 1) field_ = cut(name);
    key_ = std::move(name);
    return true;
  }
  bool end_object() {
    keep_last(members_of(*open_.back()));
    open_.pop_back();
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  template <class Error>
  bool parse_error(std::size_t position, const std::string&, const Error&) {
    return fail(not_json(position));
  }

  const Status& status() const { return status_; }
  Json take() { return std::move(root_); }

 private:
  using Members = std::vector<std::pair<const std::string, Json>>;

  /// Of an object that is open.
  static Members& members_of(Json& value) { return *json::object(value); }

  template <class T>
  Json& put(T&& value) {
    if (open_.empty()) {
      root_ = std::forward<T>(value);
      return root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) return parent.emplace_back(std::forward<T>(value));
    return members_of(parent).emplace_back(std::move(key_), std::forward<T>(value)).second;
  }
  template <class T>
  bool add(T&& value) {
    if (++elements_ > bounds_.elements) return fail(too_many(field_, bounds_.elements));
    put(std::forward<T>(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == static_cast<std::size_t>(bounds_.depth)) return fail(too_deep(field_, bounds_.depth));
    if (++elements_ > bounds_.elements) return fail(too_many(field_, bounds_.elements));
    open_.push_back(&put(std::move(value)));
    return true;
  }
  bool fail(Status status) {
    status_ = std::move(status);
    return false;
  }

  // A repeated key keeps its last value, at the place of that last value.
  static void keep_last(Members& members) {
    if (members.size() < 2) return;
    std::vector<std::size_t> order(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return members[a].first < members[b].first; });
    std::vector<bool> drop(members.size(), false);
    bool any = false;
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      if (members[order[i]].first == members[order[i + 1]].first) any = drop[order[i]] = true;
    }
    if (!any) return;
    Members kept;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!drop[i]) kept.emplace_back(members[i].first, std::move(members[i].second));
    }
    members.swap(kept);
  }

  const JsonBounds bounds_;
  Json root_;
  std::vector<Json*> open_;  // pointers stay valid: a parent does not grow while its child is open
  std::string key_;
  std::string field_;  // the last top-level key, for messages
  std::int64_t elements_ = 0;
  Status status_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonBounds& bounds) {
  if (text.empty()) return invalid("The body is empty; a JSON object is expected", {}, "invalid_json");
  // The library takes a zero byte for the end of the text; JSON has none, not even within strings.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) return not_json(zero + 1);
  BoundedBuilder builder(bounds);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return builder.status();
  return builder.take();
}

std::string cut(std::string_view text) {
  constexpr std::size_t kBytes = 48;
  if (text.size() <= kBytes) return std::string(text);
  std::size_t end = kBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string excerpt(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (const std::string* text = json::text(value)) {
    std::string out;
    append_json_string(out, cut(*text));
    return out;
  }
  return to_text(value);
}

}  // namespace troupe::http
