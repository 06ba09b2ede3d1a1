#pragma once
// The clients that wait for a status page, and the engine's last status. The engine is asked once for all
// waiting clients; if it does not answer in time they get the page without the engine's part.
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

  /// Adds a client and asks the engine unless a question is open. `engine` is null when it does not run.
  void ask(ipc::Fd client, const Control* engine, TimePoint now);

  /// Asks the engine for its status without a client, unless a question is open.
  void sample(const Control& engine, TimePoint now);

  /// A status event of the engine. True when it answers the open question.
  bool answered(const Packet& packet);

  /// The engine's part of the page, from the last event.
  void fill(StatusPage& page) const;

  /// When waiting clients are answered without the engine. Unset when none waits.
  std::optional<TimePoint> deadline() const { return deadline_; }

  /// Sends the page to all waiting clients.
  void reply(const StatusPage& page);

 private:
  Duration patience_;
  std::vector<ipc::Fd> clients_;
  std::optional<TimePoint> deadline_;
  std::int64_t question_ = 0;
  nlohmann::json last_;
};

}  // namespace troupe::supervisor
