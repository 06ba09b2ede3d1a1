#pragma once
// API keys. They are kept and compared as SHA-256 digests, every key on every comparison, so the time taken
// does not tell how much of a guess was right.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::http {

/// What a key opens: `client` the API; `admin` everything.
enum class Access : std::uint8_t { none, client, admin };

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& clients, const std::vector<std::string>& admins = {});

  /// False when no client key was configured: the API is open.
  bool required() const { return !clients_.empty(); }
  /// True when admin keys were configured.
  bool admins() const { return !admins_.empty(); }
  /// What the headers open: the higher of the two. `authorization` is "Bearer KEY", `x_api_key` the key alone; an
  /// absent header is empty.
  Access access(std::string_view authorization, std::string_view x_api_key) const;
  /// Names the configured key that the headers bring, without telling it: 16 hexadecimal digits. Empty when they bring
  /// none.
  std::string fingerprint(std::string_view authorization, std::string_view x_api_key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  static bool among(const std::vector<Digest>& digests, const Digest& given);
  Access access_of(std::string_view key) const;

  std::vector<Digest> clients_;
  std::vector<Digest> admins_;
};

}  // namespace troupe::http
