#include "actors/media/media_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "config/child_environment.h"
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
    if (child_.running() && (decoded_ >= setup_.pictures || child_.has_ended())) stop();
    if (!child_.running()) {
      Status status = start();
      if (status.code == Code::unavailable && attempts == 0 && !given_up_) continue;
      if (!status.ok()) return status;
    }
    request.id = ++last_id_;
    MediaReply reply;
    Status status;
    end = attempt(request, file, grid, reply, status, patches);
    if (end == End::answered && status.ok()) return reply;
    if (end == End::answered) return status;
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
      return failure(Code::unavailable,
                     "cannot be decoded: two processes were killed at it; try again later");
  }
}

Status MediaProcess::start() {
  const auto failed = [](const std::string& why) {
    return failure(Code::unavailable, "cannot be decoded: " + why + "; try again later");
  };
  std::vector<std::string> words{"media", setup_.sandbox ? "--sandbox=on" : "--sandbox=off"};
  if (setup_.videos) words.emplace_back("--videos");
  auto child = supervisor::ChildProcess::start_with_socket(
      setup_.executable, words, SOCK_SEQPACKET,
      config::child_environment(config::ChildKind::media, config::process_environment()), socket_);
  if (!child.ok()) return failed(child.status().message);
  child_ = *std::move(child);
  decoded_ = 0;
  MediaReply hello;
  std::optional<Status> said;
  if (wait_for_reply(setup_.times.start, hello) == End::answered && hello.id == 0)
    said = media::status_of(hello);
  if (said && said->ok()) return {};
  stop();
  if (!said) return failed("the process that does it did not start");
  return failure(Code::unsupported,
                 "cannot be decoded: this machine has no sandbox for the process that does it (" +
                     said->message + "); --media-sandbox off does without one");
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
  if (!media::send_request(socket_.get(), request, file, probes ? file : patches.get())) return end_of_talk();
  if (const End end = wait_for_reply(setup_.times.picture, reply); end != End::answered) return end;
  auto said = media::status_of(reply);
  const bool grants = probes ? is_possible(reply.video, request.bounds)
                             : reply.grid == grid && is_final(patches.get(), request.patch_bytes);
  if (reply.id != request.id || !said || !(said->ok() ? grants : is_refusal(*said))) {
    stop();
    return End::broken;
  }
  status = *std::move(said);
  return End::answered;
}

/// Stops the process when there is no reply in time, or something else than one.
MediaProcess::End MediaProcess::wait_for_reply(std::chrono::milliseconds limit, MediaReply& reply) {
  const TimePoint end = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0 || given_up_) {
      stop();
      return End::slow;
    }
    pollfd waited{socket_.get(), POLLIN, 0};
    if (::poll(&waited, 1, static_cast<int>(std::min(left, kLook).count())) <= 0) continue;
    if (const auto received = media::receive_reply(socket_.get())) {
      reply = *received;
      return End::answered;
    }
    return end_of_talk();
  }
}

/// The kernel ends a process that has used a picture's time of the processor, also when this one cannot.
void MediaProcess::limit_processor_time() const {
  rlimit limit{};
  if (prlimit(child_.pid(), RLIMIT_CPU, nullptr, &limit) != 0) return;
  using std::chrono::seconds;
  const auto used = std::chrono::floor<seconds>(child_.processor_time());
  const auto most = used + std::chrono::ceil<seconds>(setup_.times.picture) + seconds(1);
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(most.count()));
  prlimit(child_.pid(), RLIMIT_CPU, &limit, nullptr);
}

/// The process has closed the socket, or said what is no reply. One that is about to end by itself is waited
/// for: its end says why.
MediaProcess::End MediaProcess::end_of_talk() {
  const bool ended = child_.has_ended(kLook);
  const int signal = stop();
  if (!ended) return End::broken;
  return signal == SIGKILL ? End::killed : signal == SIGXCPU ? End::slow : End::broken;
}

/// Ends the process. Returns the signal that it died of.
int MediaProcess::stop() {
  socket_.reset();
  if (!child_.running()) return 0;
  child_.kill(SIGKILL);
  return child_.reap().signal;
}

}  // namespace troupe
