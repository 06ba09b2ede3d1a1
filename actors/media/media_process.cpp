#include "actors/media/media_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 declares its functions without C linkage
}

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "ipc/memory_file.h"
#include "media/header/picture_header.h"
#include "media/resize/patches.h"

namespace troupe {
namespace {

using media::MediaReply;
using media::MediaRequest;
using media::MediaWork;

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr auto kLook = std::chrono::milliseconds(100);  ///< how often a wait looks whether it is given up

/// Memory that the process may fill but not resize, and which it can then seal for good.
ipc::Fd make_patch_memory(std::uint64_t bytes) {
  ipc::Fd fd(memfd_create("troupe-patches", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0)
    fd.reset();
  return fd;
}

/// True when the memory is sealed against writing and resizing, and has this size.
bool is_final(int fd, std::uint64_t bytes) {
  constexpr int kFinal = kSizeSeals | F_SEAL_WRITE | F_SEAL_SEAL;
  struct stat st {};
  return (fcntl(fd, F_GET_SEALS) & kFinal) == kFinal && fstat(fd, &st) == 0 &&
         static_cast<std::uint64_t>(st.st_size) == bytes;
}

/// True for what a process that works as it should may say against a picture.
bool is_refusal(const Status& status) {
  constexpr std::string_view kReasons[] = {"invalid_image",   "unsupported_image", "image_too_large",
                                           "image_too_small", "invalid_video",     "unsupported_video"};
  return status.code == Code::unavailable || status.code == Code::unsupported ||
         (status.code == Code::invalid_argument &&
          std::ranges::find(kReasons, status.reason) != std::end(kReasons));
}

/// True for what a video may say of itself.
bool is_possible(const media::VideoFacts& facts, const media::PictureBounds& bounds) {
  return facts.frames > 0 && facts.width > 0 && facts.height > 0 &&
         std::int64_t{facts.width} * facts.height <= bounds.pixels &&
         std::isfinite(facts.frames_per_second) && facts.frames_per_second > 0 &&
         std::isfinite(facts.seconds());
}

Result<ipc::ConstantBytes> map_file(int file) {
  auto mapped = ipc::map_constant_file(file);
  struct stat st {};
  if (!mapped.ok() && fstat(file, &st) == 0 && st.st_size == 0)
    return media::read_picture_header({}).status();
  if (!mapped.ok()) return failure(Code::internal, "is not held in sealed memory");
  return mapped;
}

media::Bytes bytes_of(const ipc::ConstantBytes& file) {
  return {reinterpret_cast<const std::uint8_t*>(file.bytes.data()), file.bytes.size()};
}

}  // namespace

Result<PreparedPicture> MediaProcess::prepare(int file, const media::PixelLimits& limits) {
  const auto mapped = map_file(file);
  if (!mapped.ok()) return mapped.status();
  const auto header = media::read_picture_header(bytes_of(*mapped), setup_.bounds);
  if (!header.ok()) return header.status();
  const auto grid = media::grid_of(header->shown_width(), header->shown_height(), limits);
  if (!grid.ok()) return grid.status();
  MediaRequest request{.file_bytes = mapped->bytes.size(), .bounds = setup_.bounds, .limits = limits};
  return fill(request, file, *grid);
}

Result<media::VideoFacts> MediaProcess::probe_video(int file) {
  const auto mapped = map_file(file);
  if (!mapped.ok()) return mapped.status();
  if (mapped->bytes.size() > setup_.bounds.bytes)
    return media::invalid_video("is a video of " + std::to_string(mapped->bytes.size()) + " bytes: at most " +
                                std::to_string(setup_.bounds.bytes) + " are read");
  if (const auto picture = media::read_picture_header(bytes_of(*mapped), setup_.bounds); picture.ok())
    return media::invalid_video(std::string("is a ") + media::to_string(picture->kind) +
                                " picture, where a video is expected");
  MediaRequest request{
      .work = MediaWork::probe_video, .file_bytes = mapped->bytes.size(), .bounds = setup_.bounds};
  ipc::Fd none;
  auto reply = ask(request, file, {}, none);
  if (!reply.ok()) return reply.status();
  return reply->video;
}

Result<PreparedPicture> MediaProcess::prepare_video(int file, const media::VideoFacts& facts,
                                                    const media::PixelLimits& limits,
                                                    const VideoSampling& sampling) {
  const auto mapped = map_file(file);
  if (!mapped.ok()) return mapped.status();
  const auto frames = media::sampled_frames(facts, sampling);
  if (!frames.ok()) return frames.status();
  const auto grid = media::video_grid(facts, frames->size(), limits);
  if (!grid.ok()) return grid.status();
  MediaRequest request{.work = MediaWork::video,
                       .file_bytes = mapped->bytes.size(),
                       .bounds = setup_.bounds,
                       .limits = limits,
                       .sampling = media::words_of(sampling)};
  return fill(request, file, *grid);
}

Result<PreparedPicture> MediaProcess::fill(MediaRequest& request, int file, const PatchGrid& grid) {
  request.patch_bytes = media::patches_bytes(grid);
  PreparedPicture out{grid, {}};
  const auto reply = ask(request, file, grid, out.patches);
  if (!reply.ok()) return reply.status();
  return out;
}

/// The reply that grants what was asked for, of the process or of the one after it.
Result<MediaReply> MediaProcess::ask(MediaRequest& request, int file, const PatchGrid& grid,
                                     ipc::Fd& patches) {
  End end = End::answered;
  for (int attempts = 0; attempts < 2; ++attempts) {
    const Status found = find_process();
    if (found.code == Code::unavailable && attempts == 0 && !given_up_) continue;
    if (!found.ok()) return found;
    request.id = ++last_id_;
    MediaReply reply;
    Status status;
    end = attempt(request, file, grid, reply, status, patches);
    if (end == End::answered) {
      if (decoded_ >= setup_.pictures) end_process(SIGTERM);
      if (status.ok()) return reply;
      return status;
    }
    if (given_up_) return failure(Code::unavailable, "is not decoded: the server is shutting down");
    static constexpr const char* kNames[] = {"answered", "slow", "killed", "broken"};
    setup_.log.error("media_process_replaced",
                     {kv("why", kNames[static_cast<int>(end)]), kv("bytes", request.file_bytes),
                      kv("frames", grid.frames), kv("rows", grid.rows), kv("columns", grid.columns)});
  }
  return refusal(end);
}

Status MediaProcess::refusal(End last) const {
  switch (last) {
    case End::slow:
      return invalid("takes longer than " + std::to_string(setup_.times.picture.count()) + " ms to decode",
                     {}, "image_too_complex");
    case End::broken:
      return invalid("is damaged: two processes that were to decode it have broken down", {},
                     "invalid_image");
    default:
      return failure(Code::internal, "cannot be decoded: two processes were killed at it; try again later");
  }
}

/// One message of the socket, and what it changes.
MediaProcess::Heard MediaProcess::hear(MediaReply& reply) {
  const auto received = media::receive_reply(setup_.socket);
  if (!received) return Heard::nothing;
  if (!received->reply) return Heard::nonsense;
  reply = *received->reply;
  if (reply.id == media::kEndId && received->sender == setup_.supervisor) {
    forget_process();
    begun_ = 0;
    end_signal_ = reply.code;
    return Heard::end;
  }
  if (reply.id != 0) return Heard::reply;
  auto said = media::status_of(reply);
  if (!said || received->sender <= 0 || received->sender == begun_) return Heard::nonsense;
  forget_process();
  begun_ = received->sender;
  cannot_ = *std::move(said);
  if (!cannot_.ok()) return Heard::refusal;
  pid_ = received->sender;
  return Heard::greeting;
}

/// Hears what has come, and waits for a process where none runs.
Status MediaProcess::find_process() {
  const auto failed = [](const char* why) {
    return failure(Code::unavailable, std::string("cannot be decoded: ") + why + "; try again later");
  };
  const TimePoint end = Clock::now() + setup_.times.start;
  for (bool failed_start = false;;) {
    MediaReply reply;
    pid_t had_begun = begun_;
    for (Heard heard{}; (heard = hear(reply)) != Heard::nothing; had_begun = begun_) {
      failed_start = heard == Heard::end ? had_begun == 0 : failed_start && begun_ == 0;
      if (Clock::now() < end) continue;
      end_process(SIGKILL);  // it speaks without an end
      break;
    }
    if (!cannot_.ok())
      return failure(Code::unsupported,
                     "cannot be decoded: this machine has no sandbox for the process that does it (" +
                         cannot_.message + "); --media-sandbox off does without one");
    if (pid_ != 0 && process_) {
      if (!has_ended()) return {};
      forget_process();  // the word of its end comes soon
    } else if (pid_ != 0) {
      // The pid is this process's as long as its end has not been heard.
      process_.reset(pidfd_open(pid_, 0));
      if (!process_) pid_ = 0;
      continue;
    }
    if (given_up_ || failed_start || Clock::now() >= end)
      return failed("the process that does it did not start");
    wait(end);
  }
}

MediaProcess::End MediaProcess::attempt(const MediaRequest& request, int file, const PatchGrid& grid,
                                        MediaReply& reply, Status& status, ipc::Fd& patches) {
  const bool probes = request.work == MediaWork::probe_video;
  if (!probes) patches = make_patch_memory(request.patch_bytes);
  if (!probes && !patches) {
    status = failure(Code::unavailable, "cannot be decoded: memory does not suffice; try again later");
    return End::answered;
  }
  ++decoded_;
  limit_processor_time();
  if (!media::send_request(setup_.socket, request, file, probes ? file : patches.get())) {
    end_process(SIGKILL);
    return End::broken;
  }
  if (const End end = wait_for_reply(request.id, reply); end != End::answered) return end;
  auto said = media::status_of(reply);
  const bool grants = probes ? is_possible(reply.video, request.bounds)
                             : reply.grid == grid && is_final(patches.get(), request.patch_bytes);
  if (reply.id != request.id || !said || !(said->ok() ? grants : is_refusal(*said))) {
    end_process(SIGKILL);
    return End::broken;
  }
  status = *std::move(said);
  return End::answered;
}

/// Ends the process when there is no reply in time, or something else than one.
MediaProcess::End MediaProcess::wait_for_reply(std::uint64_t id, MediaReply& reply) {
  for (const TimePoint end = Clock::now() + setup_.times.picture;;) {
    if (Clock::now() >= end || given_up_) {
      end_process(SIGKILL);
      return End::slow;
    }
    switch (hear(reply)) {
      case Heard::nothing: wait(end); break;
      case Heard::reply:
        if (reply.id >= id) return End::answered;
        break;  // to what nobody waits for any more
      case Heard::end:
        if (end_signal_ == SIGXCPU) return End::slow;
        return end_signal_ == SIGKILL || end_signal_ == SIGTERM ? End::killed : End::broken;
      default: end_process(SIGKILL); return End::broken;
    }
  }
}

void MediaProcess::wait(TimePoint end) const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  pollfd waited{setup_.socket, POLLIN, 0};
  if (left.count() > 0) ::poll(&waited, 1, static_cast<int>(std::min(left, kLook).count()));
}

/// The kernel ends a process that has used a picture's time of the processor, also when this one cannot.
void MediaProcess::limit_processor_time() const {
  rlimit limit{};
  clockid_t clock{};
  timespec used{};
  if (prlimit(pid_, RLIMIT_CPU, nullptr, &limit) != 0 || clock_getcpuclockid(pid_, &clock) != 0 ||
      clock_gettime(clock, &used) != 0)
    return;
  using std::chrono::seconds;
  const auto most = seconds(used.tv_sec) + std::chrono::ceil<seconds>(setup_.times.picture) + seconds(1);
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(most.count()));
  prlimit(pid_, RLIMIT_CPU, &limit, nullptr);
}

bool MediaProcess::has_ended() const {
  pollfd ended{process_.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

/// Its end is heard later.
void MediaProcess::end_process(int signal) {
  if (process_) pidfd_send_signal(process_.get(), signal, nullptr, 0);
  forget_process();
}

void MediaProcess::forget_process() {
  pid_ = 0;
  process_.reset();
  decoded_ = 0;
}

}  // namespace troupe
