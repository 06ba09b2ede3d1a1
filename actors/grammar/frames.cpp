#include "actors/grammar/frames.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace troupe::frames {
namespace {

bool write_all(int fd, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t sent = ::send(fd, bytes, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes += sent;
    size -= static_cast<std::size_t>(sent);
  }
  return true;
}

constexpr int kPatienceMs = 100;

Outcome read_all(int fd, char* bytes, std::size_t size, const std::function<bool()>& exceeded,
                 const std::atomic<bool>* given_up) {
  while (size > 0) {
    if (given_up != nullptr && *given_up) return Outcome::closed;
    pollfd waited{fd, POLLIN, 0};
    const int ready = ::poll(&waited, 1, exceeded ? kPatienceMs : -1);
    if (ready == 0 && exceeded && exceeded()) return Outcome::timeout;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t got = ::recv(fd, bytes, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Outcome::closed;
    bytes += got;
    size -= static_cast<std::size_t>(got);
  }
  return Outcome::done;
}

void put(std::string& out, std::string_view text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += text;
}

bool take(std::string_view& in, std::string& text) {
  std::uint32_t size = 0;
  if (in.size() < sizeof size) return false;
  std::memcpy(&size, in.data(), sizeof size);
  in.remove_prefix(sizeof size);
  if (in.size() < size) return false;
  text = in.substr(0, size);
  in.remove_prefix(size);
  return true;
}

}  // namespace

bool write(int fd, std::string_view bytes) {
  const std::uint64_t size = bytes.size();
  return write_all(fd, reinterpret_cast<const char*>(&size), sizeof size) &&
         write_all(fd, bytes.data(), bytes.size());
}

Outcome read(int fd, std::string& bytes, const std::function<bool()>& exceeded,
             const std::atomic<bool>* given_up) {
  std::uint64_t size = 0;
  const Outcome head = read_all(fd, reinterpret_cast<char*>(&size), sizeof size, exceeded, given_up);
  if (head != Outcome::done) return head;
  if (size > kMaxBytes) return Outcome::closed;
  bytes.resize(size);
  return read_all(fd, bytes.data(), size, exceeded, given_up);
}

Outcome read(int fd, std::string& bytes) { return read(fd, bytes, nullptr, nullptr); }

std::string to_bytes(const grammar::Source& source) {
  std::string out;
  out += static_cast<char>(source.kind);
  out += source.any_whitespace ? '\1' : '\0';
  return out + source.text;
}

Result<grammar::Source> source_from_bytes(std::string_view bytes) {
  if (bytes.size() < 2 || bytes[0] > static_cast<char>(grammar::Source::Kind::structural_tag)) {
    return failure(Code::internal, "a job is damaged");
  }
  return grammar::Source{static_cast<grammar::Source::Kind>(bytes[0]), bytes[1] != 0,
                         std::string(bytes.substr(2))};
}

std::string to_bytes(const Status& status, std::string_view form) {
  std::string out(1, static_cast<char>(status.code));
  put(out, status.message);
  put(out, status.param);
  put(out, status.reason);
  return out.append(form);
}

Status answer_from_bytes(std::string_view bytes, std::string_view& form) {
  Status status;
  const Status damaged = failure(Code::internal, "the answer of the compiling process is damaged");
  if (bytes.empty() || bytes[0] < 0 || bytes[0] > static_cast<char>(Code::internal)) return damaged;
  status.code = static_cast<Code>(bytes[0]);
  bytes.remove_prefix(1);
  if (!take(bytes, status.message) || !take(bytes, status.param) || !take(bytes, status.reason))
    return damaged;
  form = bytes;
  return status;
}

}  // namespace troupe::frames
