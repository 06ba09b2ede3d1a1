#include "actors/media/media_parts.h"

#include <algorithm>
#include <string>

#include "actors/media/media_process.h"
#include "actors/media/url_process.h"

namespace troupe {
namespace {

/// For the decoding of a video.
constexpr std::chrono::seconds kVideoTime{60};
/// Of the memory, for files that are on their way from where a URL leads.
constexpr std::uint64_t kFetchShare = 16;
constexpr double kGiB = 1024.0 * 1024 * 1024;

/// Files get a quarter of the memory, a part of it while they are being fetched, and patches the rest: as
/// they have memory of their own, who waits for patches and holds files keeps nobody from getting its
/// patches.
MediaBounds bounds_of(const config::MediaOptions& options) {
  const auto memory = static_cast<std::uint64_t>(options.memory_bytes);
  MediaBounds bounds;
  bounds.file_bytes = memory / 4;
  bounds.patch_bytes = memory - bounds.file_bytes;
  bounds.cached_bytes = options.processor_cache_gib < 0
                            ? memory / 4
                            : static_cast<std::uint64_t>(options.processor_cache_gib * kGiB);
  bounds.cached_bytes = std::min(bounds.cached_bytes, bounds.patch_bytes);
  bounds.most_file_bytes = static_cast<std::uint64_t>(options.max_file_bytes);
  if (options.allowed_domains.empty() && options.allowed_path.empty()) {
    bounds.why_not_fetched = "neither --allowed-media-domains nor --allowed-media-path is set";
  } else {
    bounds.file_bytes -= memory / kFetchShare;
  }
  return bounds;
}

}  // namespace

Result<MediaParts> media_parts(const config::MediaOptions& options, int patches_fd,
                               const MediaSockets& sockets,
                               const std::vector<std::shared_ptr<const ipc::BlockNames>>& names) {
  auto region = ipc::PatchWriter::attach(patches_fd);
  if (!region.ok()) return region.status();
  MediaParts parts;
  parts.bounds = bounds_of(options);
  MediaThreadsSetup& threads = parts.threads;
  threads.decoders = sockets.pictures.size();
  threads.video_decoders = sockets.videos.size();
  threads.region = std::make_shared<ipc::PatchWriter>(*std::move(region));
  threads.bounds.bytes = parts.bounds.most_file_bytes;
  threads.bounds.pixels = options.max_image_pixels;
  threads.files_key = random_key();
  threads.contents_key = random_key();
  if (!names.empty()) {
    const ipc::NamesKey key = names.front()->key();
    threads.contents_key = {key.low, key.high};
  }
  MediaProcessSetup process;
  process.bounds = threads.bounds;
  process.times.picture = std::chrono::milliseconds(options.timeout_ms);
  threads.make_decoder = [process, sockets](std::size_t index, const Log& log) {
    MediaProcessSetup setup = process;
    setup.socket = sockets.pictures[index];
    setup.log = log;
    return std::make_unique<MediaProcess>(std::move(setup));
  };
  process.times.picture = kVideoTime;
  threads.make_video_decoder = [process, sockets](std::size_t index, const Log& log) {
    MediaProcessSetup setup = process;
    setup.socket = sockets.videos[index];
    setup.log = log;
    return std::make_unique<MediaProcess>(std::move(setup));
  };
  UrlSetup urls;
  urls.hosts = options.allowed_domains;
  urls.directory = options.allowed_path;
  urls.memory = std::make_shared<UrlMemory>();
  urls.memory->most = static_cast<std::uint64_t>(options.memory_bytes) / kFetchShare;
  urls.bytes = std::min(threads.bounds.bytes, urls.memory->most);
  threads.fetch = [urls](const std::string& url, const std::atomic<bool>& give_up) {
    return fetch_url(urls, url, give_up);
  };
  return parts;
}

}  // namespace troupe
