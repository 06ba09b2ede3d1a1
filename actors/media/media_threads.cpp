#include "actors/media/media_threads.h"

#include <algorithm>
#include <optional>

#include "actors/media/media_files.h"
#include "base/contain.h"
#include "ipc/memory_file.h"

namespace troupe {
namespace {

/// A fault of ours as one that continues the name of a field.
Status at_fault(Status fault) {
  fault.message = "cannot be read: " + fault.message;
  return fault;
}

}  // namespace

MediaThreads::MediaThreads(MediaThreadsSetup setup, std::function<void()> notify)
    : setup_(std::move(setup)), notify_(std::move(notify)) {
  for (int i = 0; i < setup_.decoders; ++i) decoders_.push_back(setup_.make_decoder(setup_.log));
  files_thread_ = std::jthread([this](const std::stop_token& stop) { run_files(stop); });
  for (const auto& decoder : decoders_) {
    decoder_threads_.emplace_back(
        [this, one = decoder.get()](const std::stop_token& stop) { run_decoder(stop, *one); });
  }
}

MediaThreads::~MediaThreads() {
  for (const auto& decoder : decoders_) decoder->give_up();
  files_thread_.request_stop();
  for (std::jthread& thread : decoder_threads_) thread.request_stop();
  files_thread_.join();
  for (std::jthread& thread : decoder_threads_) thread.join();
}

void MediaThreads::measure(MeasureWork work) {
  {
    const std::lock_guard lock(mutex_);
    files_.push_back(std::move(work));
  }
  more_files_.notify_one();
}

void MediaThreads::prepare(PrepareWork work) {
  {
    const std::lock_guard lock(mutex_);
    pictures_.push_back(std::move(work));
  }
  more_pictures_.notify_one();
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
    std::erase_if(files_, [&](const MeasureWork& work) { return work.ticket == ticket; });
    found = std::erase_if(pictures_, [&](const PrepareWork& work) { return work.ticket == ticket; }) > 0;
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
      MeasuredFile file;
      Status fault = contain(setup_.log, "picture measuring", {}, [&] {
        file = measure_file(work->base64, work->limits, setup_.bounds, setup_.files_key);
      });
      if (!fault.ok()) file = {at_fault(std::move(fault)), {}, 0, {}, {}};
      add(&MediaOutcomes::measured, work->ticket, std::move(file));
    }
    setup_.pulse->end();
  }
}

/// Of the requests with the fewest pictures at work, the first. There is one.
PrepareWork MediaThreads::take_next() {
  const auto at_work = [this](const PrepareWork& work) {
    const auto found = at_work_.find(work.request);
    return found == at_work_.end() ? 0 : found->second;
  };
  const auto next =
      std::min_element(pictures_.begin(), pictures_.end(),
                       [&](const PrepareWork& a, const PrepareWork& b) { return at_work(a) < at_work(b); });
  PrepareWork work = std::move(*next);
  pictures_.erase(next);
  ++at_work_[work.request];
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
      if (const auto found = at_work_.find(work.request); --found->second == 0) at_work_.erase(found);
    }
    add(&MediaOutcomes::prepared, work.ticket, std::move(patches));
  }
}

PreparedPatches MediaThreads::prepare(PictureDecoder& decoder, const PrepareWork& work) {
  const auto picture = decoder.prepare(work.file->get(), work.limits);
  if (!picture.ok()) return {picture.status(), {}, {}};
  const auto mapped = ipc::map_constant_file(picture->patches.get());
  if (!mapped.ok())
    return {failure(Code::unavailable, "cannot be read: memory does not suffice; try again later"), {}, {}};
  PreparedPatches out;
  out.contents = contents_of(MediaKind::image, picture->grid, mapped->bytes, setup_.contents_key);
  const std::lock_guard lock(region_mutex_);
  auto place = setup_.region->add(MediaKind::image, picture->grid, mapped->bytes);
  if (!place.ok()) {
    out.status =
        failure(Code::unavailable, "cannot be held: " + place.status().message + "; try again later");
    return out;
  }
  out.place = *place;
  return out;
}

}  // namespace troupe
