#pragma once
#include <memory>
#include <vector>

#include "actors/media/media_book.h"
#include "actors/media/media_sockets.h"
#include "actors/media/media_threads.h"
#include "base/log.h"
#include "base/status.h"
#include "config/options.h"
#include "ipc/block_names.h"

namespace troupe {

/// What MEDIA is given at spawn.
struct MediaParts {
  MediaBounds bounds;
  MediaThreadsSetup threads;
  Log log;
};

/// What MEDIA is given, but for its log: bounds as the flags say, the processes that decode, the region
/// behind `patches_fd`, which is taken over. Pictures are named with the key of `names`, as KV blocks are;
/// without one, with one of this process's own.
Result<MediaParts> media_parts(const config::MediaOptions& options, int patches_fd,
                               const MediaSockets& sockets,
                               const std::vector<std::shared_ptr<const ipc::BlockNames>>& names);

}  // namespace troupe
