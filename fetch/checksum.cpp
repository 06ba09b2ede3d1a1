#include "fetch/checksum.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "base/hex.h"

namespace troupe::fetch {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

}  // namespace

Status verify_sum(int fd, const RemoteFile& file, const std::atomic<bool>& stop) {
  if (file.sum.kind == SumKind::none) return {};
  const Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const EVP_MD* method = file.sum.kind == SumKind::sha256 ? EVP_sha256() : EVP_sha1();
  if (!context || EVP_DigestInit_ex(context.get(), method, nullptr) != 1) {
    return failure(Code::internal, "the checksum of " + file.path + " cannot be computed here");
  }
  if (file.sum.kind == SumKind::git_blob) {
    const std::string head = "blob " + std::to_string(file.size);
    EVP_DigestUpdate(context.get(), head.c_str(), head.size() + 1);
  }
  std::vector<char> buffer(1 << 20);
  for (std::uint64_t at = 0; at < file.size;) {
    if (stop) return failure(Code::cancelled, "stopped");
    const std::size_t wanted = std::min<std::uint64_t>(buffer.size(), file.size - at);
    const ssize_t got = ::pread(fd, buffer.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return failure(Code::internal, file.path + " cannot be read back: " +
                                         (got < 0 ? std::strerror(errno) : "it is shorter than expected"));
    }
    EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(got));
    at += static_cast<std::uint64_t>(got);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  EVP_DigestFinal_ex(context.get(), digest, &length);
  const std::string found = to_hex({digest, length});
  if (found == file.sum.hex) return {};
  return invalid(file.path + ": the checksum of what arrived is " + found + ", the hub says " + file.sum.hex);
}

}  // namespace troupe::fetch
