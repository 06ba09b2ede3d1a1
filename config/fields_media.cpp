// Flags of images and videos.
#include "config/fields.h"
#include "config/json_flags.h"

namespace troupe::config {

std::vector<Field> media_fields(MediaOptions& o) {
  return {
      {.name = "limit-mm-per-prompt",
       .slot = JsonText{&o.limit_per_prompt},
       .help = "most images and videos of one request, as {\"image\": N, \"video\": N}; 1 of a kind that is "
               "not named",
       .check = check_limit_mm_per_prompt},
      {.name = "mm-processor-kwargs",
       .slot = JsonText{&o.processor_kwargs},
       .help = "sizes of images and videos: image_min_pixels, image_max_pixels, video_min_pixels, "
               "video_max_pixels, video_fps, video_min_frames, video_max_frames, video_target_frames, "
               "video_frames_sample",
       .check = check_mm_processor_kwargs},
      {.name = "media-sandbox",
       .slot = &o.sandbox,
       .help = "decode images and videos under a filter of system calls; where the system has none they are "
               "refused"},
      {.name = "media-processes",
       .slot = &o.processes,
       .help = "processes that decode images and videos; 0: half the cores, 1 to 4",
       .min = 0,
       .max = 64},
      {.name = "media-memory",
       .slot = ByteCount{&o.memory_bytes},
       .help = "files, patches and encoder output of requests with images and videos; further requests wait",
       .unit = "bytes",
       .min = 64 << 20},
      {.name = "max-processor-cache",
       .slot = &o.processor_cache_gib,
       .help = "patches that are kept for later requests, as part of --media-memory; 0: none",
       .unit = "GiB",
       .min = -1,
       .max = 1 << 20,
       .when_unset = "a quarter of --media-memory"},
      {.name = "max-encoder-cache",
       .slot = &o.encoder_cache_tokens,
       .help = "encoder output that a worker keeps for later requests; 0: none",
       .unit = "tokens",
       .min = -1,
       .max = 1 << 30,
       .when_unset = "--max-num-batched-tokens"},
      {.name = "max-image-pixels",
       .slot = &o.max_image_pixels,
       .help = "one image or frame, checked before it is decoded",
       .unit = "pixels",
       .min = 1,
       .max = 1 << 30},
      {.name = "max-media-bytes",
       .slot = ByteCount{&o.max_file_bytes},
       .help = "file of one image or video",
       .unit = "bytes",
       .min = 1,
       .max = 1ll << 32},
      {.name = "media-timeout",
       .slot = &o.timeout_ms,
       .help = "decoding of one image",
       .unit = "milliseconds",
       .min = 1,
       .max = 600'000},
      {.name = "allowed-media-domains",
       .slot = &o.allowed_domains,
       .help = "hosts from which images and videos that a request names are fetched",
       .when_unset = "none"},
      {.name = "allowed-media-path",
       .slot = &o.allowed_path,
       .help = "directory from which file:// URLs are read",
       .when_unset = "none"},
  };
}

}  // namespace troupe::config
