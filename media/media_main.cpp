#include "media/media_main.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/child_words.h"
#include "media/messages.h"
#include "media/prepare.h"
#include "media/resize/passes.h"
#include "media/sandbox.h"
#include "media/video/decode_video.h"
#include "media/video/stamp.h"

namespace troupe::media {
namespace {

/// A whole memory file, unmapped with the object.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t bytes, int protection, int flags)
      : bytes_(bytes), data_(::mmap(nullptr, bytes, protection, flags, fd, 0)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (ok()) ::munmap(data_, bytes_);
  }

  bool ok() const { return data_ != MAP_FAILED; }
  std::span<std::uint8_t> bytes() const { return {static_cast<std::uint8_t*>(data_), bytes_}; }

 private:
  std::uint64_t bytes_;
  void* data_;
};

Status no_memory() {
  return failure(Code::unavailable, "cannot be decoded: memory does not suffice; try again later");
}

/// Opened before the sandbox, in a process for videos.
struct VideoTools {
  Status status = failure(Code::internal, "is a video, and this process is one for pictures");
  std::optional<Stamp> stamp;

  void open() {
    status = open_video_libraries();
    if (!status.ok()) return;
    auto font = Stamp::open(kStampFont);
    status = font.status();
    if (font.ok()) stamp = *std::move(font);
  }
};

Result<PatchGrid> work_on(const ReceivedRequest& received, VideoTools& tools) {
  const MediaRequest& request = received.request;
  const Mapping file(received.file.get(), request.file_bytes, PROT_READ, MAP_PRIVATE);
  const Mapping patches(received.patches.get(), request.patch_bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!file.ok() || !patches.ok()) return no_memory();
  if (request.work == MediaWork::picture)
    return prepare_picture(file.bytes(), request.bounds, request.limits, patches.bytes());
  return prepare_video(file.bytes(), request.bounds, request.limits, sampling_of(request.sampling),
                       *tools.stamp, patches.bytes());
}

MediaReply probe(const ReceivedRequest& received) {
  const MediaRequest& request = received.request;
  const Mapping file(received.file.get(), request.file_bytes, PROT_READ, MAP_PRIVATE);
  if (!file.ok()) return reply_of(request.id, no_memory());
  const auto facts = probe_video(file.bytes(), request.bounds);
  MediaReply reply = reply_of(request.id, facts.status());
  if (facts.ok()) reply.video = *facts;
  return reply;
}

MediaReply answer_to(const ReceivedRequest& received, VideoTools& tools) {
  if (received.request.work != MediaWork::picture && !tools.status.ok())
    return reply_of(received.request.id, tools.status);
  if (received.request.work == MediaWork::probe_video) return probe(received);
  const auto grid = work_on(received, tools);
  if (!grid.ok()) return reply_of(received.request.id, grid.status());
  // Sealing fails while the memory is mapped for writing: work_on() has unmapped it.
  if (::fcntl(received.patches.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return reply_of(received.request.id, failure(Code::internal, "has patches that cannot be sealed"));
  return reply_of(received.request.id, {}, *grid);
}

/// The only words to the supervisor, before any file is seen: a file that takes the process over finds the
/// channel closed.
void tell_supervisor(int channel, const Status& status) {
  if (channel < 0) return;
  std::string text = R"({"event":"state","state":"ready"})";
  if (!status.ok()) {
    std::string why = status.message;  // of our words and the C library's
    std::ranges::replace_if(
        why, [](char c) { return c == '"' || c == '\\' || c < ' '; }, ' ');
    text = R"({"event":"fatal","message":"it has no sandbox: )" + why + "\"}";
  }
  iovec part{text.data(), text.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  (void)::sendmsg(channel, &header, MSG_NOSIGNAL);
  ::close(channel);
}

void serve(int socket, VideoTools& tools) {
  while (const auto received = receive_request(socket)) {
    if (!send_reply(socket, answer_to(*received, tools))) return;
    ::malloc_trim(0);
  }
}

}  // namespace

int media_main(const std::vector<std::string>& words) {
  const int socket = descriptor_of(words, "--fd=");
  const int channel = descriptor_of(words, "--control-fd=");
  if (socket < 0) {
    std::fputs("troupe media is a child process of `troupe serve`: not to be started by hand\n", stderr);
    return 2;
  }
  (void)passes();  // looks at the processor
  VideoTools videos;
  if (std::ranges::find(words, "--videos") != words.end()) videos.open();
  ::malloc_trim(0);  // an allocator that has not begun yet asks the kernel for a random number
  if (std::ranges::find(words, "--sandbox=off") != words.end()) {
    limit_memory();
    drop_capabilities();
  } else if (const Status status = enter_sandbox(); !status.ok()) {
    tell_supervisor(channel, status);
    send_reply(socket, reply_of(0, status));
    return 1;
  }
  tell_supervisor(channel, {});
  if (send_reply(socket, reply_of(0, {}))) serve(socket, videos);
  ::_exit(0);  // what runs at an ordinary exit makes calls that the sandbox does not allow
}

}  // namespace troupe::media
