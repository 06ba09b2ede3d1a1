#include "actors/media/media_threads.h"

#include <algorithm>
#include <optional>

#include "actors/media/media_files.h"
#include "base/contain.h"
#include "ipc/memory_file.h"

namespace troupe {
namespace {

/// Each waits for one host at a time.
constexpr int kFetchers = 16;
constexpr int kFetchersOfARequest = kFetchers / 4;

/// A fault of ours as one that continues the name of a field.
Status at_fault(Status fault) {
  fault.message = "cannot be read: " + fault.message;
  return fault;
}

}  // namespace

MediaThreads::MediaThreads(MediaThreadsSetup setup, std::function<void()> notify)
    : setup_(std::move(setup)), notify_(std::move(notify)) {
  for (std::size_t i = 0; i < setup_.decoders; ++i) decoders_.push_back(setup_.make_decoder(i, setup_.log));
  files_thread_ = std::jthread([this](const std::stop_token& stop) { run_files(stop); });
  for (const auto& decoder : decoders_) {
    decoder_threads_.emplace_back(
        [this, one = decoder.get()](const std::stop_token& stop) { run_decoder(stop, *one); });
  }
  for (int i = 0; setup_.fetch && i < kFetchers; ++i)
    decoder_threads_.emplace_back([this](const std::stop_token& stop) { run_fetcher(stop); });
  for (std::size_t i = 0; setup_.make_video_decoder && i < setup_.video_decoders; ++i)
    video_decoders_.push_back(setup_.make_video_decoder(i, setup_.log));
  for (const auto& decoder : video_decoders_) {
    decoder_threads_.emplace_back(
        [this, one = decoder.get()](const std::stop_token& stop) { run_videos(stop, *one); });
  }
}

MediaThreads::~MediaThreads() {
  // Before a decoder gives up what it does: a thread that comes back from it takes nothing new.
  files_thread_.request_stop();
  for (std::jthread& thread : decoder_threads_) thread.request_stop();
  given_up_ = true;
  for (const auto& decoder : decoders_) decoder->give_up();
  for (const auto& decoder : video_decoders_) decoder->give_up();
  files_thread_.join();
  for (std::jthread& thread : decoder_threads_) thread.join();
}

void MediaThreads::measure(MeasureWork work) {
  const bool is_url = !work.source.url.empty() && setup_.fetch;
  {
    const std::lock_guard lock(mutex_);
    (is_url ? urls_ : files_).push_back(std::move(work));
  }
  (is_url ? more_urls_ : more_files_).notify_one();
}

void MediaThreads::prepare(PrepareWork work) {
  const bool is_video = work.is_video_file();
  {
    const std::lock_guard lock(mutex_);
    (is_video ? videos_ : pictures_).push_back(std::move(work));
  }
  (is_video ? more_videos_ : more_pictures_).notify_one();
}

void MediaThreads::remove(const wire::PatchPlace& place) {
  {
    const std::lock_guard lock(mutex_);
    removals_.push_back(place);
  }
  more_files_.notify_one();
}

void MediaThreads::drop(std::uint64_t ticket) {
  bool found = false;
  {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const auto& work) { return work.ticket == ticket; };
    std::erase_if(files_, is_it);
    std::erase_if(urls_, is_it);
    std::erase_if(probes_, [&](const ProbeWork& probe) { return is_it(probe.work); });
    found = std::erase_if(pictures_, is_it) + std::erase_if(videos_, is_it) > 0;
  }
  if (found)
    add(&MediaOutcomes::prepared, ticket, PreparedPatches{failure(Code::cancelled, "is not needed"), {}, {}});
}

MediaOutcomes MediaThreads::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

template <class List, class Outcome>
void MediaThreads::add(List MediaOutcomes::*list, std::uint64_t ticket, Outcome&& outcome) {
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = outcomes_.measured.empty() && outcomes_.prepared.empty();
    (outcomes_.*list).emplace_back(ticket, std::forward<Outcome>(outcome));
  }
  if (first) notify_();
}

void MediaThreads::run_files(const std::stop_token& stop) {
  for (;;) {
    std::optional<MeasureWork> work;
    std::deque<wire::PatchPlace> removals;
    {
      std::unique_lock lock(mutex_);
      if (!more_files_.wait(lock, stop, [this] { return !files_.empty() || !removals_.empty(); })) return;
      if (stop.stop_requested()) return;
      removals.swap(removals_);
      if (!files_.empty()) {
        work = std::move(files_.front());
        files_.pop_front();
      }
    }
    setup_.pulse->begin();
    for (const wire::PatchPlace& place : removals) {
      const std::lock_guard lock(region_mutex_);
      setup_.region->remove(place);
    }
    if (work) {
      std::optional<MeasuredFile> file;
      Status fault =
          contain(setup_.log, "picture measuring", {}, [&] { file = measure_now(*work, nullptr); });
      if (!fault.ok()) file.emplace().status = at_fault(std::move(fault));
      if (file) add(&MediaOutcomes::measured, work->ticket, *std::move(file));
    }
    setup_.pulse->end();
  }
}

/// Of the requests with the fewest pictures at work, the first. There is one.
PrepareWork MediaThreads::take_next() {
  const auto next = at_work_.first_of_fewest(pictures_);
  PrepareWork work = std::move(*next);
  pictures_.erase(next);
  at_work_.begin(work.request);
  return work;
}

void MediaThreads::run_decoder(const std::stop_token& stop, PictureDecoder& decoder) {
  for (;;) {
    PrepareWork work;
    {
      std::unique_lock lock(mutex_);
      if (!more_pictures_.wait(lock, stop, [this] { return !pictures_.empty(); })) return;
      if (stop.stop_requested()) return;
      work = take_next();
    }
    PreparedPatches patches;
    Status fault = contain(setup_.log, "picture", {}, [&] { patches = prepare(decoder, work); });
    if (!fault.ok()) patches = {at_fault(std::move(fault)), {}, {}};
    {
      const std::lock_guard lock(mutex_);
      at_work_.end(work.request);
    }
    add(&MediaOutcomes::prepared, work.ticket, std::move(patches));
  }
}

/// What is known of a source whose file, where it has one already, is `file`. Nothing for a video that a
/// VideoDecoder has to look at, which is told.
std::optional<MeasuredFile> MediaThreads::measure_now(MeasureWork& work, MediaFile file) {
  const http::MediaSource& source = work.source;
  if (!source.frames.empty())
    return measure_frames(source.frames, source.limits, setup_.bounds, setup_.files_key);
  if (file == nullptr) {
    auto made = file_of(source.file);
    if (!made.ok()) {
      MeasuredFile refused;
      refused.status = made.status();
      return refused;
    }
    file = *std::move(made);
  }
  if (source.kind == MediaKind::image)
    return measure_picture(std::move(file), source.limits, setup_.bounds, setup_.files_key);
  work.source.file = {};
  {
    const std::lock_guard lock(mutex_);
    probes_.push_back({std::move(work), std::move(file)});
  }
  more_videos_.notify_one();
  return std::nullopt;
}

/// Of the requests with the fewest files on the way, the first; end where each has as many as it may have.
std::deque<MeasureWork>::iterator MediaThreads::next_url() {
  const auto next = fetching_.first_of_fewest(urls_);
  return next != urls_.end() && fetching_.of(next->request) < kFetchersOfARequest ? next : urls_.end();
}

void MediaThreads::run_fetcher(const std::stop_token& stop) {
  for (;;) {
    MeasureWork work;
    {
      std::unique_lock lock(mutex_);
      auto next = urls_.end();
      if (!more_urls_.wait(lock, stop, [&] { return (next = next_url()) != urls_.end(); })) return;
      if (stop.stop_requested()) return;
      work = std::move(*next);
      urls_.erase(next);
      fetching_.begin(work.request);
    }
    const MediaRequestId request = work.request;
    const std::uint64_t ticket = work.ticket;
    std::optional<MeasuredFile> file;
    Status fault = contain(setup_.log, "fetching", {}, [&] {
      auto fetched = setup_.fetch(work.source.url, given_up_);
      if (fetched.ok()) {
        file = measure_now(work, std::make_shared<const ipc::Fd>(*std::move(fetched)));
      } else {
        file.emplace().status = fetched.status();
      }
    });
    if (!fault.ok()) file.emplace().status = at_fault(std::move(fault));
    {
      const std::lock_guard lock(mutex_);
      fetching_.end(request);
    }
    more_urls_.notify_one();  // another of the request may be fetched
    if (file) add(&MediaOutcomes::measured, ticket, *std::move(file));
  }
}

void MediaThreads::run_videos(const std::stop_token& stop, VideoDecoder& decoder) {
  const auto can_decode = [this] { return !videos_.empty() && !decodes_video_; };
  for (;;) {
    std::unique_lock lock(mutex_);
    if (!more_videos_.wait(lock, stop, [&] { return !probes_.empty() || can_decode(); })) return;
    if (stop.stop_requested()) return;
    if (!probes_.empty()) {
      ProbeWork work = std::move(probes_.front());
      probes_.pop_front();
      lock.unlock();
      probe(decoder, std::move(work));
    } else {
      PrepareWork work = std::move(videos_.front());
      videos_.pop_front();
      decodes_video_ = true;
      lock.unlock();
      decode(decoder, std::move(work));
      lock.lock();
      decodes_video_ = false;
      lock.unlock();
      more_videos_.notify_one();
    }
  }
}

void MediaThreads::probe(VideoDecoder& decoder, ProbeWork&& work) {
  MeasuredFile file;
  Status fault = contain(setup_.log, "video measuring", {}, [&] {
    const auto facts = decoder.probe_video(work.file->get());
    if (facts.ok()) {
      file = measure_video(std::move(work.file), *facts, work.work.source.limits, work.work.source.sampling,
                           setup_.files_key);
    } else {
      file.status = facts.status();
    }
  });
  if (!fault.ok()) file.status = at_fault(std::move(fault));
  add(&MediaOutcomes::measured, work.work.ticket, std::move(file));
}

void MediaThreads::decode(VideoDecoder& decoder, PrepareWork&& work) {
  PreparedPatches patches;
  Status fault = contain(setup_.log, "video", {}, [&] {
    const auto video =
        decoder.prepare_video(work.files.front()->get(), work.video, work.limits, work.sampling);
    const auto mapped = video.ok() ? ipc::map_constant_file(video->patches.get()) : video.status();
    if (mapped.ok()) {
      patches = keep(work.kind, video->grid, mapped->bytes);
    } else {
      patches.status = mapped.status();
    }
  });
  if (!fault.ok()) patches = {at_fault(std::move(fault)), {}, {}};
  add(&MediaOutcomes::prepared, work.ticket, std::move(patches));
}

/// One picture, or the frames of a video, of which the last counts twice where their number is odd.
PreparedPatches MediaThreads::prepare(PictureDecoder& decoder, const PrepareWork& work) {
  std::vector<std::byte> together;
  PatchGrid grid{};
  for (const MediaFile& file : work.files) {
    auto picture = decoder.prepare(file->get(), work.limits);
    if (!picture.ok()) return {picture.status(), {}, {}};
    const auto mapped = ipc::map_constant_file(picture->patches.get());
    if (!mapped.ok())
      return {failure(Code::unavailable, "cannot be read: memory does not suffice; try again later"), {}, {}};
    if (work.kind == MediaKind::image) return keep(work.kind, picture->grid, mapped->bytes);
    grid = {grid.frames + 1, picture->grid.rows, picture->grid.columns};
    together.insert(together.end(), mapped->bytes.begin(), mapped->bytes.end());
  }
  if (grid.frames % kMergeFrames != 0) {
    const auto bytes = together.size() / static_cast<std::size_t>(grid.frames);
    const std::vector<std::byte> last(together.end() - static_cast<std::ptrdiff_t>(bytes), together.end());
    together.insert(together.end(), last.begin(), last.end());
    ++grid.frames;
  }
  return keep(work.kind, grid, together);
}

PreparedPatches MediaThreads::keep(MediaKind kind, const PatchGrid& grid,
                                   std::span<const std::byte> patches) {
  PreparedPatches out;
  out.contents = contents_of(kind, grid, patches, setup_.contents_key);
  const std::lock_guard lock(region_mutex_);
  auto place = setup_.region->add(kind, grid, patches);
  if (!place.ok()) {
    out.status =
        failure(Code::unavailable, "cannot be held: " + place.status().message + "; try again later");
    return out;
  }
  out.place = *place;
  return out;
}

}  // namespace troupe
