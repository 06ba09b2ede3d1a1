// Of a build without libav's headers.
#include "media/video/decode_video.h"

namespace troupe::media {

Status open_video_libraries() {
  return failure(Code::unsupported,
                 "is a video, and this build reads none: it was made without the headers of libavformat");
}

Result<VideoFacts> probe_video(Bytes, const PictureBounds&) { return open_video_libraries(); }

Status decode_video(Bytes, const VideoFacts&, std::span<const std::int32_t>, const TakeFrame&) {
  return open_video_libraries();
}

}  // namespace troupe::media
