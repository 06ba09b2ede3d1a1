#pragma once
// One child across its restarts: the current process, what it reported, when the next one starts.
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/child_arguments.h"
#include "actors/supervisor/child_output.h"
#include "actors/supervisor/child_process.h"
#include "actors/supervisor/control.h"
#include "base/clock.h"
#include "ipc/segment.h"

namespace troupe::supervisor {

/// Of an engine without a front of its own the relay that takes fronts is its front; `relay` is one that
/// connects to an engine on another machine.
enum class ChildKind { front, engine, worker, text, media, relay };

struct Child {
  // Constant.
  std::string
      name;  ///< "front", "engine" (of several: "engine-0"), "worker-0", "text-0", "media-0", "video-0"
  ChildKind kind{};
  int rank = 0;  ///< of a worker among those of its engine; of a text or media process or a relay, its index
  int engine = 0;                 ///< index of the engine, or of the worker's
  bool waits_for_others = false;  ///< it may take as long as it likes to get ready: engines elsewhere have to
  std::vector<std::string> words;  ///< the subcommand, behind what the set-up puts before it
  ChildArguments arguments;        ///< all but the control channel, which every process gets anew

  // The current process.
  ChildProcess process;
  Control control;
  ChildOutput output;  ///< of a media process
  TimePoint started;
  std::uint32_t epoch = 0;  ///< in which it was started
  TimePoint ended;          ///< of the process before it
  bool ready = false;
  bool asked_to_end = false;
  std::optional<TimePoint>
      restart_by;                  ///< it was asked to end, to be started again at once; then it is killed
  std::int64_t loaded_bytes = 0;   ///< of its weights
  std::int64_t load_bytes = 0;     ///< the whole of them; 0: not known
  std::string state = "starting";  ///< starting, loading, ready, draining, stopping, restarting
  std::string fatal;               ///< message of its "fatal" event
  std::string kill_reason;         ///< why the supervisor killed it
  std::int64_t last_beat = 0;      ///< its newest heartbeat
  std::int64_t told_beats = 0;     ///< of a relay: its signs of life
  Duration silence{};              ///< how long the heartbeat has stood still
  std::string silent_part;         ///< that a front or an engine has named: its own, or a worker; empty: none

  // Over all restarts.
  bool ever_ready = false;
  int deaths = 0;
  int restarts = 0;
  int failed_starts = 0;                ///< in a row, of a media process
  std::string program;                  ///< what its next process runs; empty: what the set-up names
  std::string last_end;                 ///< how the process before this one ended
  std::optional<TimePoint> restart_at;  ///< set while it is not running and should be started

  bool running() const { return process.running(); }

  /// Starts a process in an epoch. Afterwards running(), unless the Status says why not.
  Status start(const std::string& executable, std::uint32_t in_epoch, TimePoint now);

  /// Waits for the ended process and returns how it ended: name, exit, its "fatal" message or the kill
  /// reason.
  std::string take_exit();

  ChildExit last_exit;   ///< as take_exit() found it
  bool came_up = false;  ///< the process that has ended had got ready; a worker: had greeted the engine
  bool orderly = false;  ///< a media process was asked to end: by the front, or since the front had ended
  bool follows = false;  ///< its end has come from another that was counted before
};

}  // namespace troupe::supervisor
