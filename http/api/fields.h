#pragma once
// Checked reading of one JSON object. Numbers are never narrowed silently: 1.9, true and 3000000000 are not
// an int. The first failure is kept and a failed read returns its default, so that a parser can read all its
// fields and check once at the end. Private to the parsers of http/api/.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "http/api/json_body.h"

namespace troupe::http {

/// An interval of real numbers; `open_low` excludes `low` and numbers that are equal to it as a float.
struct Range {
  double low;
  double high;
  bool open_low = false;
};

class Fields {
 public:
  /// `object` is an object and outlives this. `path` is "" at the top, else "messages.0".
  explicit Fields(Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  std::string path(std::string_view name) const;

  /// The member, or nullptr when it is absent or null. A value that is moved from it is absent afterwards.
  Json* find(std::string_view name);

  /// Fails with "out_of_range" outside the interval, with "invalid_type" for what is no number.
  std::optional<double> number(std::string_view name, const Range& range);
  /// Fails with "out_of_range" for everything but an integer of the interval, also for 1.9 and true.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  /// Fails with "invalid_value" for what is no boolean. `absent` is the default.
  bool boolean(std::string_view name, bool absent = false);
  /// Fails with "invalid_type" for what is no string.
  std::optional<std::string> string(std::string_view name);
  /// List of token ids below `vocab_size` (0: not known); "token_out_of_range" names the place.
  std::vector<TokenId> token_ids(std::string_view name, std::int64_t vocab_size, std::size_t max_items);

  /// Keeps the first failure.
  void fail(Status status);
  void fail(std::string_view name, std::string message, std::string_view reason);
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  /// Notes that the value at `path`, of the whole body, has no effect on the answer, which names it.
  void leave_out(std::string path) { left_out_.push_back(std::move(path)); }
  const std::vector<std::string>& left_out() const { return left_out_; }

 private:
  Json& object_;
  std::string path_;
  Status status_;
  std::vector<std::string> left_out_;
};

/// The value as an integer of [low, high]; floating values up to 2^53 without a fraction count. Else nothing.
std::optional<std::int64_t> as_integer(const Json& value, std::int64_t low, std::int64_t high);

/// Ids of a JSON array; a failure names `path`.<index>.
Result<std::vector<TokenId>> as_token_ids(const Json& array, const std::string& path,
                                          std::int64_t vocab_size);

}  // namespace troupe::http
