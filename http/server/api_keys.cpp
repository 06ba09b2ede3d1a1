#include "http/server/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <random>
#include <span>

#include "base/hex.h"
#include "http/server/request_head.h"

namespace troupe::http {
namespace {

/// The key of "Bearer KEY"; empty for anything else.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = same_word(authorization.substr(0, kScheme.size()), kScheme);
  return bearer ? authorization.substr(kScheme.size()) : std::string_view();
}

}  // namespace

ApiKeys::Digest ApiKeys::digest(const std::string& salt, std::string_view key) {
  const std::string salted = salt + std::string(key);
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), out.data());
  return out;
}

ApiKeys::ApiKeys(const std::vector<std::string>& clients, const std::vector<std::string>& admins) {
  constexpr std::size_t kSaltBytes = 32;
  std::random_device random;
  while (salt_.size() < kSaltBytes) salt_.push_back(static_cast<char>(random()));
  clients_ = digests(clients);
  admins_ = digests(admins);
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) const { return digest(salt_, key); }

std::vector<ApiKeys::Digest> ApiKeys::digests(const std::vector<std::string>& keys) const {
  std::vector<Digest> out;
  for (const std::string& key : keys) out.push_back(digest(key));
  std::ranges::sort(out);
  return out;
}

Access ApiKeys::access_of(std::string_view key) const {
  const Digest given = digest(key);
  const bool client = std::ranges::binary_search(clients_, given);
  const bool admin = std::ranges::binary_search(admins_, given);
  if (key.empty()) return Access::none;
  return admin ? Access::admin : client ? Access::client : Access::none;
}

Access ApiKeys::access(std::string_view authorization, std::string_view x_api_key) const {
  return std::max(access_of(bearer_key(authorization)), access_of(x_api_key));
}

/// The configured key that the headers bring; empty: none.
std::string_view ApiKeys::known_key(std::string_view authorization, std::string_view x_api_key) const {
  for (const std::string_view key : {bearer_key(authorization), x_api_key}) {
    if (access_of(key) != Access::none) return key;
  }
  return {};
}

std::string ApiKeys::fingerprint(std::string_view authorization, std::string_view x_api_key) const {
  constexpr std::size_t kBytes = 8;
  const std::string_view key = known_key(authorization, x_api_key);
  if (key.empty()) return {};
  const Digest known = digest(key);
  return to_hex(std::span(known).first(kBytes));
}

std::string ApiKeys::owner(const std::string& salt, std::string_view authorization,
                           std::string_view x_api_key) const {
  constexpr std::size_t kBytes = 16;
  const std::string_view key = known_key(authorization, x_api_key);
  if (key.empty()) return {};
  const Digest named = digest(salt, key);
  return to_hex(std::span(named).first(kBytes));
}

}  // namespace troupe::http
