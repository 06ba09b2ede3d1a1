#pragma once
// Checked reading of one JSON object. Numbers are never narrowed silently: 1.9, true and 3000000000 are not
// an int. The first failure is kept and later reads return their defaults, so a parser reads as a list of
// its fields with one check at the end. Private to the parsers of http/.
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "http/json_body.h"

namespace troupe::http {

/// A real interval; `open_low` excludes `low` itself, and what the sampler's floats do not tell from it.
struct Range {
  double low;
  double high;
  bool open_low = false;
};

class Fields {
 public:
  /// `object` is an object and outlives this. `path` is "" at the top, else "messages.0".
  explicit Fields(const Json& object, std::string path = {}) : object_(object), path_(std::move(path)) {}

  const Json& object() const { return object_; }
  std::string path(std::string_view name) const;

  /// The member, or nullptr when it is absent or null.
  const Json* find(std::string_view name) const;

  /// "out_of_range" outside the interval, "invalid_type" for what is no number.
  std::optional<double> number(std::string_view name, const Range& range);
  /// "out_of_range" for everything that is not an integer of the interval, 1.9 and true among it.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  /// "invalid_value" for what is no boolean.
  bool boolean(std::string_view name, bool absent = false);
  /// "invalid_type" for what is no string.
  std::optional<std::string> string(std::string_view name);
  /// List of token ids below `vocab_size` (0: not known); "token_out_of_range" names the place.
  std::vector<TokenId> token_ids(std::string_view name, std::int64_t vocab_size, std::size_t max_items);

  /// Keeps the first failure.
  void fail(Status status);
  void fail(std::string_view name, std::string message, std::string_view reason);
  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  Status status_;
};

/// The value as an integer of [low, high]; integral floating values up to 2^53 count. Nothing otherwise.
std::optional<std::int64_t> as_integer(const Json& value, std::int64_t low, std::int64_t high);

/// Ids of a JSON array; the failure names `path`.<place>.
Result<std::vector<TokenId>> as_token_ids(const Json& array, const std::string& path,
                                          std::int64_t vocab_size);

}  // namespace troupe::http
