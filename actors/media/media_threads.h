#pragma once
// The threads that do MEDIA's work. One measures pictures and gives back memory of the region; some decode
// pictures, each with a PictureDecoder of its own, and copy them into the region; some fetch files by URL,
// for one request no more than a quarter of them at a time: its hosts may be slow;
// two look at videos, each with a VideoDecoder of its own, of which one at a time decodes: what a video's
// frames are is never asked behind a whole video.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/media/media_book.h"
#include "actors/media/media_process.h"
#include "base/log.h"
#include "base/work_pulse.h"
#include "ipc/patch_writer.h"
#include "media/header/picture_header.h"

namespace troupe {

struct MediaThreadsSetup {
  std::size_t decoders = 1;        ///< threads that decode pictures
  std::size_t video_decoders = 2;  ///< threads that look at videos
  std::function<std::unique_ptr<PictureDecoder>(std::size_t index, const Log& log)> make_decoder;
  std::function<std::unique_ptr<VideoDecoder>(std::size_t index, const Log& log)> make_video_decoder;
  /// The file behind a URL, as fetch_url(); any thread.
  std::function<Result<ipc::Fd>(const std::string& url, const std::atomic<bool>& give_up)> fetch;
  std::shared_ptr<ipc::PatchWriter> region;  ///< used by nothing else
  media::PictureBounds bounds;
  HashKey contents_key;  ///< of the names of prepared pictures: that of the names of KV blocks
  HashKey files_key;     ///< of the names of files: random bits that clients never see
  Log log{};
  /// Sign of life of the thread that measures; no deadline bounds it.
  std::shared_ptr<WorkPulse> pulse = std::make_shared<WorkPulse>();
};

/// What has ended, by ticket.
struct MediaOutcomes {
  std::vector<std::pair<std::uint64_t, MeasuredFile>> measured;
  std::vector<std::pair<std::uint64_t, PreparedPatches>> prepared;
};

/// No call blocks but the destructor.
class MediaThreads {
 public:
  /// `notify` is called from the threads when there is something to take(); it must not block.
  MediaThreads(MediaThreadsSetup setup, std::function<void()> notify);
  /// Ends within a fraction of a second; outcomes that are not there yet never come.
  ~MediaThreads();
  MediaThreads(const MediaThreads&) = delete;
  MediaThreads& operator=(const MediaThreads&) = delete;

  void measure(MeasureWork work);
  /// Among pictures that wait, those of the request come first that has the fewest at work.
  void prepare(PrepareWork work);
  /// The work is not needed. A file that is not measured yet has no outcome then, and a picture that is not
  /// decoded yet Code::cancelled.
  void drop(std::uint64_t ticket);
  /// The item of the region is not needed any more.
  void remove(const wire::PatchPlace& place);

  MediaOutcomes take();

 private:
  /// How much is done at once for each request.
  class WorkCounts {
   public:
    int of(const MediaRequestId& request) const {
      const auto found = counts_.find(request);
      return found == counts_.end() ? 0 : found->second;
    }
    void begin(const MediaRequestId& request) { ++counts_[request]; }
    void end(const MediaRequestId& request) {
      if (const auto found = counts_.find(request); --found->second == 0) counts_.erase(found);
    }
    /// Of the requests for which the least is done, the first of `queue`; its end when that is empty.
    template <class Work>
    typename std::deque<Work>::iterator first_of_fewest(std::deque<Work>& queue) const {
      return std::ranges::min_element(queue, {}, [this](const Work& work) { return of(work.request); });
    }

   private:
    std::map<MediaRequestId, int> counts_;
  };
  /// A video whose file is there.
  struct ProbeWork {
    MeasureWork work;
    MediaFile file;
  };

  void run_files(const std::stop_token& stop);
  void run_decoder(const std::stop_token& stop, PictureDecoder& decoder);
  void run_fetcher(const std::stop_token& stop);
  void run_videos(const std::stop_token& stop, VideoDecoder& decoder);
  void probe(VideoDecoder& decoder, ProbeWork&& probe);
  void decode(VideoDecoder& decoder, PrepareWork&& work);
  std::optional<MeasuredFile> measure_now(MeasureWork& work, MediaFile file);
  PreparedPatches prepare(PictureDecoder& decoder, const PrepareWork& work);
  PreparedPatches keep(MediaKind kind, const PatchGrid& grid, std::span<const std::byte> patches);
  PrepareWork take_next();
  std::deque<MeasureWork>::iterator next_url();
  /// Adds an outcome, and says so if it is the first.
  template <class List, class Outcome>
  void add(List MediaOutcomes::*list, std::uint64_t ticket, Outcome&& outcome);

  const MediaThreadsSetup setup_;
  const std::function<void()> notify_;
  std::vector<std::unique_ptr<PictureDecoder>> decoders_;  // each prepares in its thread
  std::vector<std::unique_ptr<VideoDecoder>> video_decoders_;
  std::atomic<bool> given_up_{false};

  std::mutex mutex_;
  std::condition_variable_any more_files_, more_pictures_, more_urls_, more_videos_;
  std::deque<MeasureWork> files_;  // guarded by mutex_, as all below
  std::deque<wire::PatchPlace> removals_;
  std::deque<PrepareWork> pictures_;
  std::deque<MeasureWork> urls_;
  std::deque<ProbeWork> probes_;
  std::deque<PrepareWork> videos_;
  bool decodes_video_ = false;
  WorkCounts at_work_;   // pictures that are being decoded
  WorkCounts fetching_;  // files that are being fetched
  MediaOutcomes outcomes_;

  std::mutex region_mutex_;  // for setup_.region

  std::jthread files_thread_;
  std::vector<std::jthread> decoder_threads_;  // and those of URLs and videos
};

}  // namespace troupe
