#include "model/swap/kv_pair_messages.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>

namespace troupe::model {

Status PairSocket::make(OwnedFd& one, OwnedFd& other) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
    return failure(Code::internal, std::string("no socket can be made: ") + std::strerror(errno));
  one.reset(fds[0]);
  other.reset(fds[1]);
  return {};
}

bool PairSocket::send_bytes(std::span<const std::byte> bytes) {
  ssize_t sent;
  do sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes.size());
}

PairSocket::Got PairSocket::receive_bytes(std::span<std::byte> bytes, TimePoint deadline) {
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (n == static_cast<ssize_t>(bytes.size())) return Got::packet;
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return Got::end;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Got::nothing;
    pollfd wait{fd_.get(), POLLIN, 0};
    (void)::poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
  }
}

bool PairSocket::has_ended() const {
  pollfd look{fd_.get(), POLLRDHUP, 0};
  return ::poll(&look, 1, 0) > 0;
}

void PairSocket::close() { (void)::shutdown(fd_.get(), SHUT_RDWR); }

void put_text(std::span<char> into, const std::string& text) {
  const std::size_t count = std::min(text.size(), into.size() - 1);
  std::memcpy(into.data(), text.data(), count);
  into[count] = '\0';
}

std::string text_in(std::span<const char> from) {
  std::string text(from.begin(), std::find(from.begin(), from.end(), '\0'));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

}  // namespace troupe::model
