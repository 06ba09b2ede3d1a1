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

bool ApiKeys::known(std::string_view key) const {
  const Digest given = digest(key);
  bool known = false;
  for (const Digest& digest : digests_)
    known |= CRYPTO_memcmp(digest.data(), given.data(), given.size()) == 0;
  return known && !key.empty();
}

bool ApiKeys::allow(std::string_view authorization, std::string_view x_api_key) const {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = same_word(authorization.substr(0, kScheme.size()), kScheme);
  const bool by_bearer = known(bearer ? authorization.substr(kScheme.size()) : std::string_view());
  const bool by_header = known(x_api_key);
  return by_bearer || by_header;
}

}  // namespace troupe::http
