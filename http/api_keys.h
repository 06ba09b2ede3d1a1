#pragma once
// API keys. They are kept and compared as SHA-256 digests, every key on every comparison, so the time taken
// does not tell how much of a guess was right.
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
  static Digest digest(std::string_view key);
  bool known(std::string_view key) const;
  std::vector<Digest> digests_;
};

}  // namespace troupe::http
