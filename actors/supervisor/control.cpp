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
// Packets that are no object, in one call: who sends more of them must not keep the receiver at it.
constexpr int kMostSkipped = 1000;

/// Room for the one descriptor that a packet may carry.
struct Ancillary {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

ipc::Fd attached_to(msghdr& header) {
  const cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return {};
  // The room is aligned, so that more than one may fit.
  ipc::Fd first;
  const std::size_t bytes = rights->cmsg_len - CMSG_LEN(0);
  for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights) + at, sizeof fd);
    ipc::Fd one(fd);
    if (!first) first = std::move(one);
  }
  return first;
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

std::map<std::string, std::string> Packet::texts(const char* member) const {
  std::map<std::string, std::string> all;
  const auto it = message.find(member);
  if (it == message.end() || !it->is_object()) return all;
  for (const auto& [name, value] : it->items()) {
    if (value.is_string()) all.emplace(name, value.get<std::string>());
  }
  return all;
}

ssize_t send_attached(int socket, const char* data, std::size_t size, int attached) {
  iovec part{const_cast<char*>(data), size};
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
  do sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_attached(int socket, char* data, std::size_t size, ipc::Fd& attached) {
  iovec part{data, size};
  Ancillary ancillary;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = ancillary.bytes;
  header.msg_controllen = sizeof ancillary.bytes;
  const ssize_t n = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n >= 0) attached = attached_to(header);
  return n;
}

Status Control::send(const nlohmann::json& message, int attached) const {
  std::string text = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxPacketBytes) {
    return failure(Code::too_large, "a control message has " + std::to_string(text.size()) +
                                        " bytes; at most " + std::to_string(kMaxPacketBytes) +
                                        " are allowed");
  }
  const ssize_t sent = send_attached(socket_.get(), text.data(), text.size(), attached);
  if (sent >= 0) return {};
  if (errno == EAGAIN || errno == ENOBUFS) return failure(Code::overloaded, "the control channel is full");
  return failure(Code::unavailable, std::string("the control channel is closed: ") + std::strerror(errno));
}

Packet Control::receive(TimePoint deadline) {
  std::string buffer(kMaxPacketBytes, '\0');
  for (int skipped = 0;;) {
    ipc::Fd attached;
    const ssize_t n = receive_attached(socket_.get(), buffer.data(), buffer.size(), attached);
    if (n > 0) {
      Packet packet{
          Packet::Kind::message,
          nlohmann::json::parse(buffer.begin(), buffer.begin() + n, nullptr, /*allow_exceptions=*/false),
          std::move(attached)};
      if (packet.message.is_object()) return packet;
      if (++skipped == kMostSkipped) return {Packet::Kind::timeout, {}, {}};
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    // Told once, by the end of a peer that had not read everything: what it has sent comes behind it.
    if (n < 0 && errno == ECONNRESET) continue;
    if (n == 0 || errno != EAGAIN) return {Packet::Kind::closed, {}, {}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return {Packet::Kind::timeout, {}, {}};
    pollfd wait{socket_.get(), POLLIN, 0};
    poll(&wait, 1, static_cast<int>(std::min<std::int64_t>(left, 1'000'000)));
  }
}

int pid_of_peer(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

Result<ControlPair> make_control_pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return failure(Code::internal, std::string("no control channel can be made: ") + std::strerror(errno));
  }
  return ControlPair{Control(ipc::Fd(fds[0])), ipc::Fd(fds[1])};
}

}  // namespace troupe::supervisor
