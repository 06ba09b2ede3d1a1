#include "fetch/media_url.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "base/clock.h"

namespace troupe::fetch {
namespace {

constexpr int kMostRedirects = 5;

Status not_allowed(std::string why) {
  return invalid("is a URL that is not fetched: " + std::move(why), {}, "url_not_allowed");
}
Status failed(std::string why) {
  return invalid("is a URL that cannot be fetched: " + std::move(why), {}, "url_failed");
}

struct Release {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

/// A part of a URL; empty where it has none.
std::string part(CURLU* url, CURLUPart which) {
  char* text = nullptr;
  if (curl_url_get(url, which, &text, 0) != CURLUE_OK) return {};
  std::string out(text);
  curl_free(text);
  return out;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return text;
}

struct Target {
  std::string scheme;
  std::string host;
  bool may_be_private = false;  ///< the list has the address itself
};

bool is_address(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

Result<Target> target_of(const std::string& text, const UrlRules& rules) {
  const std::unique_ptr<CURLU, Release> url(curl_url());
  if (url == nullptr || curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
    return not_allowed("it is no URL of the form https://HOST/PATH");
  Target target{lower(part(url.get(), CURLUPART_SCHEME)), lower(part(url.get(), CURLUPART_HOST))};
  if (target.scheme != "http" && target.scheme != "https")
    return not_allowed("its scheme is " + target.scheme.substr(0, 16) + "; http and https are");
  if (!part(url.get(), CURLUPART_USER).empty() || !part(url.get(), CURLUPART_PASSWORD).empty())
    return not_allowed("it has a user name or a password");
  if (target.host.starts_with('[') && target.host.ends_with(']'))
    target.host = target.host.substr(1, target.host.size() - 2);
  if (target.host.ends_with('.')) target.host.pop_back();
  const auto allows = [&](const std::string& entry) {
    const std::string name = lower(entry);
    return name.starts_with("*.")
               ? target.host.size() > name.size() - 1 && target.host.ends_with(name.substr(1))
               : target.host == name;
  };
  if (std::ranges::none_of(rules.hosts, allows))
    return not_allowed("the host " + target.host.substr(0, 64) +
                       " is not among those of --allowed-media-domains");
  target.may_be_private = is_address(target.host) || target.host == "localhost";
  return target;
}

bool is_public(std::uint32_t address) {
  struct Range {
    std::uint32_t first;
    int bits;
  };
  // Of the IANA registry of special-purpose addresses.
  constexpr Range kSpecial[] = {{0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},
                                {0xA9FE0000, 16}, {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24},
                                {0xC0586300, 24}, {0xC0A80000, 16}, {0xC6120000, 15}, {0xC6336400, 24},
                                {0xCB007100, 24}, {0xE0000000, 3}};
  return std::ranges::none_of(
      kSpecial, [&](const Range& range) { return (address ^ range.first) >> (32 - range.bits) == 0; });
}

/// The addresses of IPv4 that stand in one of IPv6 are looked at as such.
bool is_public(const in6_addr& address) {
  const std::uint8_t* b = address.s6_addr;
  const auto four = [&](int at) {
    return std::uint32_t{b[at]} << 24 | std::uint32_t{b[at + 1]} << 16 | std::uint32_t{b[at + 2]} << 8 |
           b[at + 3];
  };
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  constexpr std::array<std::uint8_t, 12> kTranslated{0, 0x64, 0xFF, 0x9B};
  if (std::equal(kMapped.begin(), kMapped.end(), b) || std::equal(kTranslated.begin(), kTranslated.end(), b))
    return is_public(four(12));
  if (b[0] == 0x20 && b[1] == 0x02) return is_public(four(2));  // 6to4
  const bool documentation = b[0] == 0x20 && b[1] == 0x01 && (b[2] < 0x02 || (b[2] == 0x0D && b[3] == 0xB8));
  return (b[0] & 0xE0) == 0x20 && !documentation;  // global unicast
}

/// One answer, of the URL or of a redirect.
struct Transfer {
  const TakeBytes& take;
  const UrlRules& rules;
  const Target& target;
  CURL* easy = nullptr;
  std::uint64_t bytes = 0;
  Status refused;

  static std::size_t on_body(char* data, std::size_t, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    long status = 0;
    curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &status);
    if (status < 200 || status > 299) return count;
    transfer.bytes += count;
    if (transfer.bytes > transfer.rules.bytes) {
      transfer.refused = failed("the file has more than " + std::to_string(transfer.rules.bytes) + " bytes");
      return 0;
    }
    transfer.refused = transfer.take({data, count});
    return transfer.refused.ok() ? count : 0;
  }

  /// The address is checked here, when it is connected to: a name may stand for another one the next time.
  static curl_socket_t on_socket(void* self, curlsocktype, curl_sockaddr* address) {
    auto& transfer = *static_cast<Transfer*>(self);
    if (!transfer.target.may_be_private && !fetch::is_public(address->addr)) {
      transfer.refused = not_allowed("its host has an address that is not public");
      return CURL_SOCKET_BAD;
    }
    return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  }
};

}  // namespace

bool is_public(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &address, sizeof four);
    return is_public(ntohl(four.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof six);
  return is_public(six.sin6_addr);
}

Status check_url(const std::string& url, const UrlRules& rules) { return target_of(url, rules).status(); }

Status fetch_file(const std::string& first, const UrlRules& rules, const TakeBytes& take) {
  const TimePoint end = Clock::now() + rules.time;
  std::string url = first;
  std::string scheme;
  for (int redirects = 0; redirects <= kMostRedirects; ++redirects) {
    const auto target = target_of(url, rules);
    if (!target.ok()) return target.status();
    if (scheme == "https" && target->scheme != "https") return not_allowed("it redirects from https to http");
    scheme = target->scheme;
    const std::unique_ptr<CURL, Release> easy(curl_easy_init());
    if (easy == nullptr) return failure(Code::unavailable, "cannot be fetched: memory does not suffice");
    Transfer transfer{take, rules, *target, easy.get()};
    const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(easy.get(), option, value); };
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return failed("it takes longer than " + std::to_string(rules.time.count()) + " ms");
    set(CURLOPT_URL, url.c_str());
    set(CURLOPT_USERAGENT, "troupe");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_PROXY, "");
    set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(left));
    set(CURLOPT_MAXFILESIZE_LARGE, static_cast<curl_off_t>(rules.bytes));
    set(CURLOPT_OPENSOCKETFUNCTION, &Transfer::on_socket);
    set(CURLOPT_OPENSOCKETDATA, &transfer);
    set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
    set(CURLOPT_WRITEDATA, &transfer);
    const CURLcode code = curl_easy_perform(easy.get());
    if (!transfer.refused.ok()) return transfer.refused;
    if (code == CURLE_FILESIZE_EXCEEDED)
      return failed("the file has more than " + std::to_string(rules.bytes) + " bytes");
    if (code == CURLE_OPERATION_TIMEDOUT)
      return failed("it takes longer than " + std::to_string(rules.time.count()) + " ms");
    if (code != CURLE_OK) return failed(curl_easy_strerror(code));
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status <= 299) return {};
    const char* next = nullptr;
    curl_easy_getinfo(easy.get(), CURLINFO_REDIRECT_URL, &next);
    if (status < 300 || status > 399 || next == nullptr)
      return failed("its host answers " + std::to_string(status));
    url = next;
  }
  return failed("it redirects more than " + std::to_string(kMostRedirects) + " times");
}

}  // namespace troupe::fetch
