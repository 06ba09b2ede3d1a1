#pragma once
// The front's side of a process that decodes pictures, which the supervisor starts and restarts
// (supervisor::MediaSocket). A client's file may make a decoder hang or crash, or take the process over; so
// the process is killed when it does not answer in time or answers what it cannot have been asked, and the
// one that follows any end is asked once more. At the second end the picture alone is refused.
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/patch_grid.h"
#include "ipc/fd.h"
#include "media/messages.h"
#include "media/pixel_grid.h"

namespace troupe {

struct MediaTimes {
  std::chrono::milliseconds picture{15'000};  ///< by the clock, and of the processor, from request to answer
  std::chrono::milliseconds start{10'000};    ///< of a process that has ended to the next one's greeting
};

struct MediaProcessSetup {
  int socket = -1;                 ///< the front's end of a supervisor::MediaSocket, borrowed
  pid_t supervisor = ::getppid();  ///< whose word about the process's end is believed
  int pictures = 200;  ///< that one process decodes, before the next one takes its place; 1 or more
  media::PictureBounds bounds;
  MediaTimes times;
  Log log{};
};

/// A picture as the vision tower reads it.
struct PreparedPicture {
  PatchGrid grid;
  ipc::Fd patches;  ///< a memory file of grid.patches() * kPatchBytes bytes, sealed against writing
};

/// What decodes pictures. give_up() is called by any thread, the others by one.
class PictureDecoder {
 public:
  virtual ~PictureDecoder() = default;
  virtual Result<PreparedPicture> prepare(int file, const media::PixelLimits& limits) = 0;
  virtual void give_up() = 0;
};

/// What decodes videos; likewise.
class VideoDecoder {
 public:
  virtual ~VideoDecoder() = default;
  virtual Result<media::VideoFacts> probe_video(int file) = 0;
  virtual Result<PreparedPicture> prepare_video(int file, const media::VideoFacts& facts,
                                                const media::PixelLimits& limits,
                                                const VideoSampling& sampling) = 0;
  virtual void give_up() = 0;
};

/// Used by one thread. A process that a MediaProcess has spoken to ends with it: the next one on the socket
/// has a fresh one.
class MediaProcess : public PictureDecoder, public VideoDecoder {
 public:
  explicit MediaProcess(MediaProcessSetup setup) : setup_(std::move(setup)) {}
  ~MediaProcess() override { end_process(SIGTERM); }
  MediaProcess(const MediaProcess&) = delete;
  MediaProcess& operator=(const MediaProcess&) = delete;

  /// `file` is a memory file of the picture's bytes, sealed by ipc::make_constant_file(). Its header is read
  /// here: what it refuses, and what has no size within `limits`, reaches no decoder. Blocks for at most
  /// twice the times of a restart and of a picture. Messages continue the name of the picture's field:
  ///   invalid_argument  the picture's fault: invalid_image, unsupported_image, image_too_large,
  ///                     image_too_small, image_too_complex
  ///   unsupported       this machine has no sandbox for the process, which wants one
  ///   internal          two processes were killed at it from outside
  ///   unavailable       memory or a process is lacking: the same picture may be tried again later
  Result<PreparedPicture> prepare(int file, const media::PixelLimits& limits) override;

  /// What the video in `file` says of its frames, within the setup's bounds. For a process for videos. Errors
  /// as of prepare(), with the reasons invalid_video and unsupported_video; unsupported also where the
  /// libraries for videos are not installed.
  Result<media::VideoFacts> probe_video(int file) override;

  /// The frames of a video that `sampling` takes; `facts` are those of probe_video().
  Result<PreparedPicture> prepare_video(int file, const media::VideoFacts& facts,
                                        const media::PixelLimits& limits,
                                        const VideoSampling& sampling) override;

  /// Ends a call that another thread waits in, and every later one, within a tenth of a second.
  void give_up() override { given_up_ = true; }

  /// Of the process that is asked; 0: none is known to run.
  pid_t pid() const { return pid_; }

 private:
  /// How an attempt ended.
  enum class End : std::uint8_t {
    answered,
    slow,    ///< its time was over
    killed,  ///< by a signal from outside
    broken,  ///< by itself, or with an answer that cannot be
  };

  /// What a message has told.
  enum class Heard : std::uint8_t { nothing, greeting, refusal, reply, end, nonsense };

  Heard hear(media::MediaReply& reply);
  Status find_process();
  Result<media::MediaReply> ask(media::MediaRequest& request, int file, const PatchGrid& grid,
                                ipc::Fd& patches);
  Result<PreparedPicture> fill(media::MediaRequest& request, int file, const PatchGrid& grid);
  End attempt(const media::MediaRequest& request, int file, const PatchGrid& grid, media::MediaReply& reply,
              Status& status, ipc::Fd& patches);
  End wait_for_reply(std::uint64_t id, media::MediaReply& reply);
  void wait(TimePoint end) const;
  void limit_processor_time() const;
  bool has_ended() const;
  void end_process(int signal);
  void forget_process();
  Status refusal(End last) const;

  const MediaProcessSetup setup_;
  pid_t pid_ = 0;
  ipc::Fd process_;     ///< a pidfd of it
  pid_t begun_ = 0;     ///< the process that has greeted and whose end has not been heard; 0: none
  int end_signal_ = 0;  ///< of the last process that has ended
  Status cannot_;       ///< what the last process that greeted said against itself
  int decoded_ = 0;     ///< pictures that the process has been asked for
  /// Greater than those that another MediaProcess gave, whose replies may come still.
  std::uint64_t last_id_ = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
  std::atomic<bool> given_up_{false};
};

}  // namespace troupe
