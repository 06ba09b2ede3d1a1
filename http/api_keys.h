#pragma once
// API keys. They are kept and compared as SHA-256 digests, every key on every comparison, so the time taken does
// not tell how much of a guess was right.
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
  /// `authorization` is the header's value, "Bearer KEY".
  bool allow(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  std::vector<Digest> digests_;
};

}  // namespace troupe::http
