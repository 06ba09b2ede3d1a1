// A process for pictures that does what one may do that a file has taken over. The words behind the end of a
// picture say what:
//
//   crash       it aborts                         kill      it is killed
//   hang        it waits for ever                 spin      it keeps the processor busy for ever
//   short       it says a few bytes               silence   it closes its socket
//   id          it answers another request        grid      its grid is larger than asked for
//   unsealed    its patches can still change      sized     it fails, with a message of control characters
//   reason      it refuses with a reason of its own         internal  it fails with an internal error
//   old         it answers an older request first
//   end         it says what the supervisor says of one that has ended, of a SIGKILL
//   greet       it greets again
//   … once      only the first of all processes with the same parent does
//
// Everything else it decodes.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>

#include "media/media_main.h"
#include "media/messages.h"
#include "media/prepare.h"

namespace {

using namespace troupe;
using namespace troupe::media;

/// True once for all processes of one parent.
bool is_first(const std::string& words) {
  const auto mark =
      std::filesystem::temp_directory_path() / ("first_media_child_of_" + std::to_string(getppid()) + "_" +
                                                std::to_string(std::hash<std::string>()(words)));
  if (!std::filesystem::exists(mark)) return std::ofstream(mark).good();
  std::filesystem::remove(mark);
  return false;
}

std::string words_of(const ReceivedRequest& received) {
  std::string file(received.request.file_bytes, '\0');
  if (pread(received.file.get(), file.data(), file.size(), 0) < 0) std::abort();
  const auto at = file.rfind("IEND");
  std::string words = at == file.npos ? "" : file.substr(at + 8);
  constexpr std::string_view kOnce = " once";
  if (!words.ends_with(kOnce)) return words;
  words.resize(words.size() - kOnce.size());
  return is_first(words) ? words : "";
}

/// An honest answer.
MediaReply answer(const ReceivedRequest& received, bool seal) {
  const MediaRequest& request = received.request;
  void* file = mmap(nullptr, request.file_bytes, PROT_READ, MAP_PRIVATE, received.file.get(), 0);
  void* patches =
      mmap(nullptr, request.patch_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, received.patches.get(), 0);
  const auto grid =
      prepare_picture({static_cast<std::uint8_t*>(file), request.file_bytes}, request.bounds, request.limits,
                      {static_cast<std::uint8_t*>(patches), request.patch_bytes});
  munmap(file, request.file_bytes);
  munmap(patches, request.patch_bytes);
  if (seal && fcntl(received.patches.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) != 0) std::abort();
  return reply_of(request.id, grid.status(), grid.ok() ? *grid : PatchGrid());
}

void play(int socket, const ReceivedRequest& received, const std::string& words) {
  if (words == "crash") std::abort();
  if (words == "kill") std::raise(SIGKILL);
  if (words == "hang") pause();
  if (words == "old") send_reply(socket, reply_of(received.request.id - 1, invalid_image("is old")));
  if (words == "end") send_end(socket, SIGKILL);
  if (words == "greet") send_reply(socket, reply_of(0, {}));
  if (words == "silence") close(socket), pause();
  for (volatile bool spins = words == "spin"; spins;) {
  }
  if (words == "short") {
    (void)!send(socket, "ok", 2, 0);
    pause();
  }
  MediaReply reply = answer(received, words != "unsealed");
  if (words == "id") reply.id += 1;
  if (words == "grid") reply.grid.rows += 2;
  if (words == "internal") reply = reply_of(received.request.id, failure(Code::internal, "is what it is"));
  if (words == "reason") reply = reply_of(received.request.id, invalid("is bad", {}, "insufficient_quota"));
  if (words == "sized") {
    reply = reply_of(received.request.id, invalid_image("is bad"));
    std::memset(reply.message, '\n', sizeof reply.message);
  }
  send_reply(socket, reply);
}

}  // namespace

int main(int, char** argv) {
  const int socket = std::atoi(argv[2] + 5);
  send_reply(socket, reply_of(0, {}));
  while (const auto received = receive_request(socket)) play(socket, *received, words_of(*received));
  return 0;
}
