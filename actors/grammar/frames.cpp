#include "actors/grammar/frames.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace troupe::frames {
namespace {

constexpr int kPatienceMs = 100;

/// Moves `size` bytes by calls of `move`, each behind a wait until the socket is ready for `event`.
template <class Move>
Outcome move_all(int fd, short event, std::size_t size, const std::function<bool()>& exceeded,
                 const std::atomic<bool>* given_up, Move move) {
  for (std::size_t done = 0; done < size;) {
    if (given_up != nullptr && *given_up) return Outcome::closed;
    pollfd waited{fd, event, 0};
    const int ready = ::poll(&waited, 1, exceeded ? kPatienceMs : -1);
    if (ready == 0 && exceeded && exceeded()) return Outcome::timeout;
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    const ssize_t moved = move(done);
    if (moved < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (moved <= 0) return Outcome::closed;
    done += static_cast<std::size_t>(moved);
  }
  return Outcome::done;
}

Outcome write_all(int fd, const char* bytes, std::size_t size, const std::function<bool()>& exceeded,
                  const std::atomic<bool>* given_up) {
  return move_all(fd, POLLOUT, size, exceeded, given_up, [&](std::size_t done) {
    return ::send(fd, bytes + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

Outcome read_all(int fd, char* bytes, std::size_t size, const std::function<bool()>& exceeded,
                 const std::atomic<bool>* given_up) {
  return move_all(fd, POLLIN, size, exceeded, given_up,
                  [&](std::size_t done) { return ::recv(fd, bytes + done, size - done, MSG_DONTWAIT); });
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

Outcome write(int fd, std::string_view bytes, const std::function<bool()>& exceeded,
              const std::atomic<bool>* given_up) {
  const std::uint64_t size = bytes.size();
  const Outcome head = write_all(fd, reinterpret_cast<const char*>(&size), sizeof size, exceeded, given_up);
  return head != Outcome::done ? head : write_all(fd, bytes.data(), bytes.size(), exceeded, given_up);
}

bool write(int fd, std::string_view bytes) { return write(fd, bytes, nullptr, nullptr) == Outcome::done; }

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
