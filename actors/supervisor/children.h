#pragma once
// The front, the engine, the workers, the text and the media processes as a set: started, watched for
// silence, restarted after a delay. What a death means for the server as a whole is the supervisor's to
// decide.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "actors/supervisor/activity.h"
#include "actors/supervisor/child.h"
#include "actors/supervisor/log_event.h"
#include "actors/supervisor/rank_links.h"
#include "actors/supervisor/restart_policy.h"
#include "actors/supervisor/status_page.h"
#include "base/clock.h"
#include "base/status.h"

namespace troupe::supervisor {

struct ChildLimits {
  /// Those that were asked for; of `restarts` the delays.
  static ChildLimits of(const config::ProcessOptions& process, RestartLimits restarts);

  RestartLimits restarts;
  Duration start_timeout{};   ///< a child that is not ready by then is killed
  Duration engine_timeout{};  ///< a ready front or engine without a heartbeat for this long is killed
  Duration worker_timeout{};  ///< the same of a worker
};

class Children {
 public:
  Children(std::string executable, const ChildLimits& limits, LogEvent log)
      : executable_(std::move(executable)),
        limits_(limits),
        restarts_(limits.restarts),
        log_(std::move(log)) {}

  /// Starts all in their order; the front is the first. `links` are theirs and are
  /// borrowed. What media processes write goes to the logs that `open_log` gives. When one cannot be started
  /// the others keep running; clear() ends them.
  Status start(std::vector<Child> children, ServerLinks& links, const OpenLog& open_log = {});

  /// Requires that start() was called.
  Child& front() { return all_.front(); }
  std::vector<Child>& all() { return all_; }
  const std::vector<Child>& all() const { return all_; }

  /// Kills every child at once and waits for them.
  void clear() { all_.clear(); }

  /// Waits for a child whose process has ended and raises the epoch of its links: what is in the rings no
  /// longer counts. Ranks run the same steps, so that the loss of one ends those of all. Returns how it
  /// ended, for people.
  ///
  /// Sets Child::follows of a worker that has come to no later epoch than the last whose end was counted: one
  /// loss may have ended both.
  std::string take_exit(Child& child);

  /// Plans the restart of a child that has ended; of several that one loss has ended, the first counts. A
  /// failure says why the server has to give up instead: never for a text process that had come up, as a
  /// client's text may have ended it, nor for such a relay, and never for a media process.
  Status plan_restart(Child& child, const std::string& how);

  /// Asks a child that runs to end; it is started again at once, which counts as no death. Killed when it has
  /// not ended by then. Not ok: it does not run, or is being restarted already.
  Status ask_to_restart(Child& child, TimePoint by, const nlohmann::json& order);

  /// As ask_to_restart(), for a child that may not be ready yet.
  Status replace(Child& child, TimePoint by, const nlohmann::json& order);

  /// Starts the children whose delay is over. A failure as of plan_restart().
  Status restart_due(TimePoint now);
  void cancel_restarts();

  /// When the next child is to be started.
  std::optional<TimePoint> next_restart() const;

  /// Requests were answered: earlier deaths no longer count towards giving up.
  void served() { restarts_.served(); }

  /// Kills children that are late or silent. Call it at least once in each `period`: time beyond two periods
  /// does not count as silence, since a machine that was stopped for a minute has stopped the children too.
  void watch(TimePoint now, Duration period);

  /// Kills with SIGKILL; the death is then handled like any other.
  void kill(Child& child, std::string reason);

  /// Kills the text process of this name, which sends the front what it should not.
  void distrust(const std::string& name, const std::string& why);

  /// The child's state, or that it or a part of it stands still. The engine names a worker that does, which
  /// it sees sooner.
  std::string shown_state(const Child& child) const;

  /// Adds a row for each child.
  void fill(StatusPage& page, TimePoint now) const;

  /// Whether `is` holds for every child that the server needs to be ready: a media process is waited for by
  /// pictures alone.
  bool every(bool Child::*is) const;

  /// How far all weights have been loaded. `seconds` is since the start of the worker that started last, at
  /// most `most`.
  Loading loading(double most) const;

 private:
  void plan_media_restart(Child& child) const;
  void watch(Child& child, TimePoint now, Duration since_last);
  std::int64_t heartbeat_ns(const Child& child) const;
  std::uint32_t epoch_of(const Child& child) const;

  std::string executable_;
  ChildLimits limits_;
  RestartPolicy restarts_;
  std::vector<std::uint32_t> counted_;  // of each engine's links, the last epoch whose end was counted
  LogEvent log_;
  std::vector<Child> all_;
  ServerLinks* links_ = nullptr;
  TimePoint watched_ = Clock::now();
};

}  // namespace troupe::supervisor
