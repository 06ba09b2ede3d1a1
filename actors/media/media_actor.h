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
  bool looks = false;         ///< a MediaWaited is on its way
  std::int32_t decoders = 1;  ///< images that are decoded at once
  metrics_actor metrics;
  MediaStats told;  ///< to METRICS
  std::unique_ptr<MediaThreads> threads;
};

/// MEDIA. actors/media/media_book.h decides, threads of actors/media/media_threads.h work. METRICS hears what
/// it holds whenever that has changed.
media_actor::behavior_type media_behavior(media_actor::stateful_pointer<MediaState> self, MediaParts parts,
                                          metrics_actor metrics);

}  // namespace troupe
