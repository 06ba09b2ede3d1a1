#pragma once
// Files that clients' requests name by URL. A client must not make the server reach what only the server can:
// so hosts are those of a list, and an address is looked at when it is connected to, not before.
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe::fetch {

struct UrlRules {
  /// "host", "*.host" for the hosts below it, or an address. Only where the list has an address itself, or
  /// "localhost", is one connected to that is not public.
  std::vector<std::string> hosts;
  std::uint64_t bytes = 0;           ///< of the file, at most
  std::chrono::milliseconds time{};  ///< for all of it
};

/// Whether the URL may be fetched: http or https, a host of the list, no user or password. invalid_argument
/// (url_not_allowed); the message continues the name of the URL's field.
Status check_url(const std::string& url, const UrlRules& rules);

/// True for an address of the public internet.
bool is_public(const sockaddr& address);

/// Takes the next bytes of the file; an error ends the transfer.
using TakeBytes = std::function<Status(std::string_view)>;

/// Fetches the file. Every redirect, of at most five, is checked as the URL was; none leads from https to
/// http. No proxy, cookie or password of this machine is used. Messages continue the name of the URL's field:
///   invalid_argument  url_not_allowed; url_failed when the other side refuses or sends too much or too
///   slowly
Status fetch_file(const std::string& url, const UrlRules& rules, const TakeBytes& take);

}  // namespace troupe::fetch
