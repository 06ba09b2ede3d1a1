#include "media/media_main.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "media/messages.h"
#include "media/prepare.h"
#include "media/resize/passes.h"
#include "media/sandbox.h"

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

Result<PatchGrid> work_on(const ReceivedRequest& received) {
  const MediaRequest& request = received.request;
  const Mapping file(received.file.get(), request.file_bytes, PROT_READ, MAP_PRIVATE);
  const Mapping patches(received.patches.get(), request.patch_bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!file.ok() || !patches.ok())
    return failure(Code::unavailable, "cannot be decoded: memory does not suffice; try again later");
  return prepare_picture(file.bytes(), request.bounds, request.limits, patches.bytes());
}

MediaReply answer_to(const ReceivedRequest& received) {
  const auto grid = work_on(received);
  if (!grid.ok()) return reply_of(received.request.id, grid.status());
  // Sealing fails while the memory is mapped for writing: work_on() has unmapped it.
  if (::fcntl(received.patches.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return reply_of(received.request.id, failure(Code::internal, "has patches that cannot be sealed"));
  return reply_of(received.request.id, {}, *grid);
}

int socket_of(const std::vector<std::string>& words) {
  int fd = -1;
  for (const std::string& word : words) {
    if (word.starts_with("--fd=")) std::from_chars(word.data() + 5, word.data() + word.size(), fd);
  }
  return fd >= 0 && ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 ? fd : -1;
}

}  // namespace

void serve_pictures(int socket) {
  while (const auto received = receive_request(socket)) {
    if (!send_reply(socket, answer_to(*received))) return;
    ::malloc_trim(0);
  }
}

int media_main(const std::vector<std::string>& words) {
  const int socket = socket_of(words);
  if (socket < 0) {
    std::fputs("troupe media is a child process of `troupe serve`: not to be started by hand\n", stderr);
    return 2;
  }
  (void)passes();    // looks at the processor
  ::malloc_trim(0);  // an allocator that has not begun yet asks the kernel for a random number
  if (std::ranges::find(words, "--sandbox=off") != words.end()) {
    limit_memory();
  } else if (const Status status = enter_sandbox(); !status.ok()) {
    send_reply(socket, reply_of(0, status));
    return 1;
  }
  if (send_reply(socket, reply_of(0, {}))) serve_pictures(socket);
  ::_exit(0);  // what runs at an ordinary exit makes calls that the sandbox does not allow
}

}  // namespace troupe::media
