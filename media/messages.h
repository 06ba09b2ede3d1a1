#pragma once
// What the server and a `troupe media` process say to each other over a socket of whole messages
// (SOCK_SEQPACKET). Both are of the same build on the same machine, so the structs travel as they are. What
// the process says may be anything once a file has taken it over: the server believes nothing of it.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "base/patch_grid.h"
#include "base/status.h"
#include "media/header/picture_header.h"
#include "media/pixel_grid.h"
#include "media/video/sampling.h"

namespace troupe::media {

enum class MediaWork : std::uint64_t {
  picture = 0,
  probe_video,  ///< what the file says of its frames; without patches
  video,
};

/// VideoSampling without padding and fractions.
struct SamplingWords {
  std::int64_t fps_millionths = 0;
  std::int32_t min_frames = 0;
  std::int32_t max_frames = 0;
  std::int32_t target_frames = 0;
  std::int32_t choice = 0;
};
SamplingWords words_of(const VideoSampling& sampling);
VideoSampling sampling_of(const SamplingWords& words);

/// Followed by two descriptors: the file's bytes, and memory for the patches that is sealed against shrinking
/// and growing.
struct MediaRequest {
  std::uint64_t id = 0;  ///< 1 or more
  MediaWork work = MediaWork::picture;
  std::uint64_t file_bytes = 0;
  std::uint64_t patch_bytes = 0;
  PictureBounds bounds;
  PixelLimits limits;
  SamplingWords sampling;  ///< of a video
};

/// Answers the request of the same id. Id 0: the process has begun, or says why it ends instead. kEndId, from
/// the supervisor: the process has ended.
constexpr std::uint64_t kEndId = ~std::uint64_t{0};
struct MediaReply {
  std::uint64_t id = 0;
  PatchGrid grid;
  VideoFacts video;       ///< of probe_video
  std::int32_t code = 0;  ///< of Code; with kEndId the signal that ended the process, 0: none did
  char reason[28] = "";   ///< texts end with a zero
  char message[400] = "";
};

MediaReply reply_of(std::uint64_t id, const Status& status, const PatchGrid& grid = {});

/// The reply's status; nothing when no process of ours says such a thing.
std::optional<Status> status_of(const MediaReply& reply);

/// Without waiting; false when it cannot be sent now.
bool send_request(int socket, const MediaRequest& request, int file, int patches);

/// Waits for room; false when the other side is gone.
bool send_reply(int socket, const MediaReply& reply);

/// The supervisor's word that the process has ended. Without waiting; false when there is no room.
bool send_end(int socket, int signal);

struct ReceivedRequest {
  MediaRequest request;
  OwnedFd file;
  OwnedFd patches;
};

/// Waits for a request; nothing when the other side is gone or says something else.
std::optional<ReceivedRequest> receive_request(int socket);

struct ReceivedReply {
  std::optional<MediaReply> reply;  ///< nothing: the message is none of ours, or the other side is gone
  pid_t sender = 0;                 ///< as the kernel vouches for it where SO_PASSCRED is set; else 0
};

/// Takes a message that is there; nothing when there is none. Descriptors that come with it are closed.
std::optional<ReceivedReply> receive_reply(int socket);

}  // namespace troupe::media
