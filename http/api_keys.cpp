#include "http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "http/request_head.h"

namespace troupe::http {
namespace {

/// The key of "Bearer KEY"; empty for anything else.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = same_word(authorization.substr(0, kScheme.size()), kScheme);
  return bearer ? authorization.substr(kScheme.size()) : std::string_view();
}

}  // namespace

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

ApiKeys::ApiKeys(const std::vector<std::string>& clients, const std::vector<std::string>& admins) {
  for (const std::string& key : clients) clients_.push_back(digest(key));
  for (const std::string& key : admins) admins_.push_back(digest(key));
}

bool ApiKeys::among(const std::vector<Digest>& digests, const Digest& given) {
  bool found = false;
  for (const Digest& digest : digests) found |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return found;
}

Access ApiKeys::access_of(std::string_view key) const {
  const Digest given = digest(key);
  const bool client = among(clients_, given);
  const bool admin = among(admins_, given);
  if (key.empty()) return Access::none;
  return admin ? Access::admin : client ? Access::client : Access::none;
}

Access ApiKeys::access(std::string_view authorization, std::string_view x_api_key) const {
  return std::max(access_of(bearer_key(authorization)), access_of(x_api_key));
}

std::string ApiKeys::fingerprint(std::string_view authorization, std::string_view x_api_key) const {
  constexpr std::size_t kBytes = 8;
  constexpr char kHex[] = "0123456789abcdef";
  for (const std::string_view key : {bearer_key(authorization), x_api_key}) {
    if (access_of(key) == Access::none) continue;
    const Digest known = digest(key);
    std::string name;
    for (std::size_t i = 0; i < kBytes; ++i) {
      name.push_back(kHex[known[i] >> 4]);
      name.push_back(kHex[known[i] & 15]);
    }
    return name;
  }
  return {};
}

}  // namespace troupe::http
