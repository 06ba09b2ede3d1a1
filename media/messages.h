#pragma once
// What the server and a `troupe media` process say to each other over a socket of whole messages
// (SOCK_SEQPACKET). Both are of the same build on the same machine, so the structs travel as they are. What
// the process says may be anything once a file has taken it over: the server believes nothing of it.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/owned_fd.h"
#include "base/patch_grid.h"
#include "base/status.h"
#include "media/header/picture_header.h"
#include "media/pixel_grid.h"

namespace troupe::media {

/// Followed by two descriptors: the file's bytes, and memory for the patches that is sealed against shrinking
/// and growing.
struct MediaRequest {
  std::uint64_t id = 0;  ///< 1 or more
  std::uint64_t file_bytes = 0;
  std::uint64_t patch_bytes = 0;
  PictureBounds bounds;
  PixelLimits limits;
};

/// Answers the request of the same id. Id 0: the process has begun, or says why it ends instead.
struct MediaReply {
  std::uint64_t id = 0;
  PatchGrid grid;
  std::int32_t code = 0;  ///< of Code
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

struct ReceivedRequest {
  MediaRequest request;
  OwnedFd file;
  OwnedFd patches;
};

/// Waits for a request; nothing when the other side is gone or says something else.
std::optional<ReceivedRequest> receive_request(int socket);

/// Takes a reply that is there; nothing when there is none, the other side is gone, or it says something
/// else.
std::optional<MediaReply> receive_reply(int socket);

}  // namespace troupe::media
