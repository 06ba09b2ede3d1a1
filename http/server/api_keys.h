#pragma once
// API keys. They are kept as SHA-256 digests with a random salt, and a key is looked up by its digest: the
// time taken is about the same for a hundred thousand keys as for one, and tells nothing about how much of a
// guess was right.
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
  /// What the headers open: the higher of the two. `authorization` is "Bearer KEY", `x_api_key` the key
  /// alone; an absent header is empty.
  Access access(std::string_view authorization, std::string_view x_api_key) const;
  /// Names the configured key that the headers bring, without telling it: 16 hexadecimal digits. Empty when
  /// they bring none.
  std::string fingerprint(std::string_view authorization, std::string_view x_api_key) const;
  /// The same in a form that a later process finds again: 32 hexadecimal digits, made with `salt`.
  std::string owner(const std::string& salt, std::string_view authorization,
                    std::string_view x_api_key) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(const std::string& salt, std::string_view key);
  Digest digest(std::string_view key) const;
  std::string_view known_key(std::string_view authorization, std::string_view x_api_key) const;
  std::vector<Digest> digests(const std::vector<std::string>& keys) const;
  Access access_of(std::string_view key) const;

  std::string salt_;             ///< in front of each key that is digested
  std::vector<Digest> clients_;  ///< sorted
  std::vector<Digest> admins_;   ///< sorted
};

}  // namespace troupe::http
