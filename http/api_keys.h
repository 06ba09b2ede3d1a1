#pragma once
// API keys. They are kept as SHA-256 digests with a random salt, and a key is looked up by its digest: the time taken is
// about the same for a hundred thousand keys as for one, and tells nothing about how much of a guess was right.
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::http {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);

  /// False when no key was configured: every request is allowed.
  bool required() const { return !digests_.empty(); }
  /// True if one of the two headers has a configured key. `authorization` is "Bearer KEY", `x_api_key` the
  /// key alone; an absent header is empty.
  bool allow(std::string_view authorization, std::string_view x_api_key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  Digest digest(std::string_view key) const;
  bool known(std::string_view key) const;
  std::string salt_;             ///< in front of each key that is digested
  std::vector<Digest> digests_;  ///< sorted
};

}  // namespace troupe::http
