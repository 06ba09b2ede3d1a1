#include "actors/supervisor/control.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace troupe::supervisor {

namespace {

constexpr std::size_t kMaxPacketBytes = 64 << 10;

/// Room for the one descriptor that a packet may carry.
struct Ancillary {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

ipc::Fd attached_to(msghdr& header) {
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return ipc::Fd(fd);
}

}  // namespace

std::string Packet::text(const char* member) const {
  const auto it = message.find(member);
  return it != message.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::int64_t Packet::number(const char* member, std::int64_t otherwise) const {
  const auto it = message.find(member);
  return it != message.end() && it->is_number_integer() ? it->get<std::int64_t>() : otherwise;
}

Status Control::send(const nlohmann::json& message, int attached) const {
  std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxPacketBytes) {
    return failure(Code::too_large, "a control message has " + std::to_string(text.size()) +
                                        " bytes; at most " + std::to_string(kMaxPacketBytes) +
                                        " are allowed");
  }
  iovec part{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  Ancillary ancillary;
  if (attached >= 0) {
    header.msg_control = ancillary.bytes;
    header.msg_controllen = sizeof ancillary.bytes;
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof attached);
    std::memcpy(CMSG_DATA(rights), &attached, sizeof attached);
  }
  ssize_t sent;
  do sent = ::sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  if (sent >= 0) return {};
  if (errno == EAGAIN || errno == ENOBUFS) return failure(Code::overloaded, "the control channel is full");
  return failure(Code::unavailable, std::string("the control channel is closed: ") + std::strerror(errno));
}

Packet Control::receive(TimePoint deadline) {
  std::string buffer(kMaxPacketBytes, '\0');
  for (;;) {
    iovec part{buffer.data(), buffer.size()};
    Ancillary ancillary;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.bytes;
    header.msg_controllen = sizeof ancillary.bytes;
    const ssize_t n = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n > 0) {
      Packet packet{
          Packet::Kind::message,
          nlohmann::json::parse(buffer.begin(), buffer.begin() + n, nullptr, /*allow_exceptions=*/false),
          attached_to(header)};
      if (packet.message.is_object()) return packet;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || errno != EAGAIN) return {Packet::Kind::closed, {}, {}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return {Packet::Kind::timeout, {}, {}};
    pollfd wait{socket_.get(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
  }
}

Result<ControlPair> make_control_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return failure(Code::internal, std::string("no control channel can be made: ") + std::strerror(errno));
  }
  return ControlPair{Control(ipc::Fd(fds[0])), ipc::Fd(fds[1])};
}

}  // namespace troupe::supervisor
