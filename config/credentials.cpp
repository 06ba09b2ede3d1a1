#include "config/credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/address_set.h"

namespace troupe::config {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

Status bad_file(const char* flag, const std::string& path, const std::string& why) {
  return invalid(std::string("--") + flag + " " + path + ": " + why, flag, "invalid_value");
}

/// A FIFO or a device would be waited for, so only a regular file is read.
Result<std::string> read_credential_file(const char* flag, const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return bad_file(flag, path, std::string("cannot be read: ") + std::strerror(errno));
  struct stat about {};
  std::string text;
  Status status;
  if (::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    status = bad_file(flag, path, "is not a regular file");
  } else if (static_cast<std::size_t>(about.st_size) > kMaxFileBytes) {
    status = bad_file(flag, path, "has " + std::to_string(about.st_size) + " bytes, expected at most 1 MiB");
  } else {
    text.resize(static_cast<std::size_t>(about.st_size));
    const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
    if (n < 0) status = bad_file(flag, path, std::string("cannot be read: ") + std::strerror(errno));
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  }
  ::close(fd);
  if (!status.ok()) return status;
  return text;
}

/// The parts from "-----BEGIN …" to the end of the line "-----END …".
std::string pem_blocks(std::string_view text) {
  std::string blocks;
  while (true) {
    const std::size_t begin = text.find("-----BEGIN ");
    if (begin == text.npos) return blocks;
    const std::size_t end = text.find("-----END ", begin);
    if (end == text.npos) return blocks;
    const std::size_t line = text.find('\n', end);
    blocks.append(text.substr(begin, line == text.npos ? line : line - begin)).push_back('\n');
    text.remove_prefix(line == text.npos ? text.size() : line);
  }
}

Result<std::string> read_pem(const char* flag, const std::string& path) {
  auto text = read_credential_file(flag, path);
  if (!text.ok()) return text;
  std::string blocks = pem_blocks(*text);
  if (blocks.empty()) return bad_file(flag, path, "holds nothing in PEM form (\"-----BEGIN …\")");
  return blocks;
}

/// One key a line; blank lines and lines that begin with # do not count.
Result<std::vector<std::string>> read_api_keys(const char* flag, const std::string& path) {
  auto text = read_credential_file(flag, path);
  if (!text.ok()) return text.status();
  std::vector<std::string> keys;
  for (std::string_view rest = *text; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    constexpr std::string_view kBlanks = " \t\r";
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
    if (line.empty() || line.front() == '#') continue;
    for (const char c : line) {
      if (c > ' ' && c <= '~') continue;
      return bad_file(flag, path,
                      "key " + std::to_string(keys.size() + 1) +
                          " has a blank or a character that is not printable ASCII");
    }
    keys.emplace_back(line);
  }
  if (keys.empty()) return bad_file(flag, path, "holds no key; leave the flag out to serve without keys");
  return keys;
}

}  // namespace

Status read_credentials(HttpOptions& http) {
  HttpOptions fresh = http;
  if (!http.api_key_file.empty()) {
    auto keys = read_api_keys("api-key-file", http.api_key_file);
    if (!keys.ok()) return keys.status();
    fresh.file_api_keys = *std::move(keys);
  }
  if (!http.admin_api_key_file.empty()) {
    auto keys = read_api_keys("admin-api-key-file", http.admin_api_key_file);
    if (!keys.ok()) return keys.status();
    fresh.file_admin_api_keys = *std::move(keys);
  }
  if (!http.ssl_certfile.empty()) {
    const bool apart = !http.ssl_keyfile.empty();
    auto certificate = read_pem("ssl-certfile", http.ssl_certfile);
    if (!certificate.ok()) return certificate.status();
    auto key = apart ? read_pem("ssl-keyfile", http.ssl_keyfile) : certificate;
    if (!key.ok()) return key.status();
    fresh.certificate_pem = *std::move(certificate);
    fresh.private_key_pem = *std::move(key);
  }
  http = std::move(fresh);
  return {};
}

std::vector<std::string> all_api_keys(const HttpOptions& http) {
  std::vector<std::string> keys = http.api_keys;
  keys.insert(keys.end(), http.file_api_keys.begin(), http.file_api_keys.end());
  return keys;
}

std::vector<std::string> all_admin_api_keys(const HttpOptions& http) {
  std::vector<std::string> keys = http.admin_api_keys;
  keys.insert(keys.end(), http.file_admin_api_keys.begin(), http.file_admin_api_keys.end());
  return keys;
}

std::string exposure_warning(const HttpOptions& http) {
  const auto address = parse_address(http.host);
  const bool own = http.host == "localhost" || (address && is_loopback(*address));
  if (own || !all_api_keys(http).empty()) return {};
  return "--host " + http.host +
         " opens the server to the network, and no key is asked for: whoever reaches port " +
         std::to_string(http.port) + " can use it. Give --api-key-file FILE or set FD_API_KEY";
}

}  // namespace troupe::config
