#include "media/messages.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/utf8.h"

namespace troupe::media {
namespace {

static_assert(std::is_trivially_copyable_v<MediaRequest> && std::is_trivially_copyable_v<MediaReply>);
// No padding, with which bytes of the server's memory would reach the process.
static_assert(std::has_unique_object_representations_v<MediaRequest>);

constexpr int kSentDescriptors = 2;
/// Room for the descriptors of a request, aligned as the kernel wants it.
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kSentDescriptors * sizeof(int))> bytes{};
};

template <std::size_t Size>
void copy(char (&to)[Size], std::string_view text) {
  text = text.substr(0, Size - 1);
  std::copy(text.begin(), text.end(), to);
  to[text.size()] = '\0';
}

/// The text of a field; nothing when it does not end within it, or is not one printable line.
template <std::size_t Size>
std::optional<std::string> text_in(const char (&field)[Size]) {
  const std::size_t size = ::strnlen(field, Size);
  const std::string_view text(field, size);
  if (size == Size || !utf8::is_valid(text)) return std::nullopt;
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }))
    return std::nullopt;
  return std::string(text);
}

bool is_code(std::int32_t code) {
  return code >= static_cast<std::int32_t>(Code::ok) && code <= static_cast<std::int32_t>(Code::internal);
}

/// A message of one part, with room for descriptors where `control` is given.
msghdr header_of(iovec& part, Control* control = nullptr) {
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (control != nullptr) {
    header.msg_control = control->bytes.data();
    header.msg_controllen = control->bytes.size();
  }
  return header;
}

/// Sends one message, again when a signal comes between.
bool send(int socket, const msghdr& header, std::size_t bytes, int flags) {
  ssize_t sent = -1;
  do sent = ::sendmsg(socket, &header, flags | MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

ssize_t receive(int socket, msghdr& header, int flags) {
  ssize_t received = -1;
  do received = ::recvmsg(socket, &header, flags);
  while (received < 0 && errno == EINTR);
  return received;
}

}  // namespace

SamplingWords words_of(const VideoSampling& sampling) {
  return {static_cast<std::int64_t>(std::llround(sampling.fps * 1e6)), sampling.min_frames,
          sampling.max_frames, sampling.target_frames, static_cast<std::int32_t>(sampling.choice)};
}

VideoSampling sampling_of(const SamplingWords& words) {
  return {static_cast<double>(words.fps_millionths) / 1e6, words.min_frames, words.max_frames,
          words.target_frames, static_cast<FrameChoice>(words.choice)};
}

MediaReply reply_of(std::uint64_t id, const Status& status, const PatchGrid& grid) {
  MediaReply reply{.id = id, .grid = grid, .video = {}, .code = static_cast<std::int32_t>(status.code)};
  copy(reply.reason, status.reason);
  // A library's text may have any bytes.
  std::string message = utf8::to_valid(status.message);
  std::ranges::replace_if(
      message, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  std::size_t size = std::min(message.size(), sizeof reply.message - 1);
  while (size < message.size() && (static_cast<unsigned char>(message[size]) & 0xC0) == 0x80)
    --size;  // whole characters
  copy(reply.message, std::string_view(message).substr(0, size));
  return reply;
}

std::optional<Status> status_of(const MediaReply& reply) {
  auto message = text_in(reply.message), reason = text_in(reply.reason);
  if (!message || !reason || !is_code(reply.code)) return std::nullopt;
  Status status{static_cast<Code>(reply.code), *std::move(message), {}, *std::move(reason)};
  if (status.ok() != status.message.empty()) return std::nullopt;
  return status;
}

bool send_reply(int socket, const MediaReply& reply) {
  iovec part{const_cast<MediaReply*>(&reply), sizeof reply};
  return send(socket, header_of(part), sizeof reply, 0);
}

bool send_end(int socket, int signal) {
  const MediaReply end{.id = kEndId, .grid = {}, .video = {}, .code = signal};
  iovec part{const_cast<MediaReply*>(&end), sizeof end};
  return send(socket, header_of(part), sizeof end, MSG_DONTWAIT);
}

bool send_request(int socket, const MediaRequest& request, int file, int patches) {
  iovec part{const_cast<MediaRequest*>(&request), sizeof request};
  Control control;
  msghdr header = header_of(part, &control);
  cmsghdr* descriptors = CMSG_FIRSTHDR(&header);
  descriptors->cmsg_level = SOL_SOCKET;
  descriptors->cmsg_type = SCM_RIGHTS;
  descriptors->cmsg_len = CMSG_LEN(kSentDescriptors * sizeof(int));
  const int numbers[kSentDescriptors] = {file, patches};
  std::memcpy(CMSG_DATA(descriptors), numbers, sizeof numbers);
  return send(socket, header, sizeof request, MSG_DONTWAIT);
}

std::optional<ReceivedRequest> receive_request(int socket) {
  ReceivedRequest out;
  iovec part{&out.request, sizeof out.request};
  Control control;
  msghdr header = header_of(part, &control);
  const ssize_t received = receive(socket, header, MSG_CMSG_CLOEXEC);
  const cmsghdr* descriptors = CMSG_FIRSTHDR(&header);
  if (descriptors != nullptr && descriptors->cmsg_type == SCM_RIGHTS &&
      descriptors->cmsg_len == CMSG_LEN(kSentDescriptors * sizeof(int))) {
    int numbers[kSentDescriptors];
    std::memcpy(numbers, CMSG_DATA(descriptors), sizeof numbers);
    out.file.reset(numbers[0]);
    out.patches.reset(numbers[1]);
  }
  if (received != static_cast<ssize_t>(sizeof out.request) || !out.file || !out.patches) return std::nullopt;
  return out;
}

std::optional<ReceivedReply> receive_reply(int socket) {
  MediaReply reply;
  iovec part{&reply, sizeof reply};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};  // no room for descriptors
  msghdr header = header_of(part);
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t received = receive(socket, header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0 && errno == EAGAIN) return std::nullopt;
  ReceivedReply out;
  const cmsghdr* const first = CMSG_FIRSTHDR(&header);
  if (first != nullptr && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_CREDENTIALS &&
      first->cmsg_len == CMSG_LEN(sizeof(ucred))) {
    ucred credentials{};
    std::memcpy(&credentials, CMSG_DATA(first), sizeof credentials);
    out.sender = credentials.pid;
  }
  if (received == static_cast<ssize_t>(sizeof reply) && (header.msg_flags & MSG_TRUNC) == 0)
    out.reply = reply;
  return out;
}

}  // namespace troupe::media
