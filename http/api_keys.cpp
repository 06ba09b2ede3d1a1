#include "http/api_keys.h"

#include <openssl/sha.h>

#include <algorithm>
#include <random>

#include "http/request_head.h"

namespace troupe::http {

ApiKeys::Digest ApiKeys::digest(std::string_view key) const {
  const std::string salted = salt_ + std::string(key);
  Digest out;
  SHA256(reinterpret_cast<const unsigned char*>(salted.data()), salted.size(), out.data());
  return out;
}

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  constexpr std::size_t kSaltBytes = 32;
  std::random_device random;
  while (salt_.size() < kSaltBytes) salt_.push_back(static_cast<char>(random()));
  for (const std::string& key : keys) digests_.push_back(digest(key));
  std::ranges::sort(digests_);
}

bool ApiKeys::known(std::string_view key) const {
  return std::ranges::binary_search(digests_, digest(key)) && !key.empty();
}

bool ApiKeys::allow(std::string_view authorization, std::string_view x_api_key) const {
  constexpr std::string_view kScheme = "Bearer ";
  const bool bearer = same_word(authorization.substr(0, kScheme.size()), kScheme);
  const bool by_bearer = known(bearer ? authorization.substr(kScheme.size()) : std::string_view());
  const bool by_header = known(x_api_key);
  return by_bearer || by_header;
}

}  // namespace troupe::http
