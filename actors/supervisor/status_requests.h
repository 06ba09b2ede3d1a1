#pragma once
// Collects who asks for the status and what the engine last said about itself. A question goes to the engine
// once for all who wait; when it does not answer in time they get the page without its part.
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "actors/supervisor/control.h"
#include "actors/supervisor/status_page.h"
#include "base/clock.h"
#include "ipc/fd.h"

namespace troupe::supervisor {

class StatusRequests {
 public:
  explicit StatusRequests(Duration patience) : patience_(patience) {}

  /// Somebody asks. The engine is asked unless it is already; null when it does not run.
  void ask(ipc::Fd client, const Control* engine, TimePoint now);

  /// A status event of the engine. True when it answers the open question.
  bool answered(const Packet& packet);

  /// The engine's part of the page, from the last event.
  void fill(StatusPage& page) const;

  /// When the waiting ones have to be answered without the engine. Unset when nobody waits.
  std::optional<TimePoint> deadline() const { return deadline_; }

  /// Sends the page to all who wait.
  void reply(const StatusPage& page);

 private:
  Duration patience_;
  std::vector<ipc::Fd> clients_;
  std::optional<TimePoint> deadline_;
  std::int64_t question_ = 0;
  nlohmann::json last_;
};

}  // namespace troupe::supervisor
