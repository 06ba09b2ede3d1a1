#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "actors/media/media_book.h"
#include "actors/media/media_parts.h"
#include "actors/media/media_threads.h"
#include "actors/protocol.h"
#include "base/log.h"

namespace troupe {

struct MediaState {
  static inline const char* name = "media";
  struct Open {
    std::string request_id;
    std::int64_t began_ns = 0;  ///< of what is not answered
    caf::typed_response_promise<MeasuredMedia> measured;
    caf::typed_response_promise<MediaReady> ready;
  };

  Log log;
  std::unique_ptr<MediaBook> book;
  std::map<MediaRequestId, Open> open;
  bool looks = false;  ///< a MediaWaited is on its way
  std::unique_ptr<MediaThreads> threads;
};

/// MEDIA. actors/media/media_book.h decides, threads of actors/media/media_threads.h work.
media_actor::behavior_type media_behavior(media_actor::stateful_pointer<MediaState> self, MediaParts parts);

}  // namespace troupe
