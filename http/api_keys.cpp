#include "http/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include "http/request_head.h"

namespace troupe::http {

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), out.data());
  return out;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest(key));
}

bool ApiKeys::allow(std::string_view authorization) const {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = same_word(authorization.substr(0, kScheme.size()), kScheme);
  const Digest given = digest(bearer ? authorization.substr(kScheme.size()) : std::string_view());
  bool known = false;
  for (const Digest& digest : digests_)
    known |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return bearer && known;
}

}  // namespace troupe::http
