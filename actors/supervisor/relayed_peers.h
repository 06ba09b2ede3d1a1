#pragma once
// Fronts and engines on other machines, as the relays of this server tell of them.
#include <map>
#include <string>
#include <vector>

#include "actors/supervisor/console.h"
#include "actors/supervisor/control.h"
#include "actors/supervisor/status_page.h"

namespace troupe::supervisor {

class RelayedPeers {
 public:
  explicit RelayedPeers(Console& console) : console_(console) {}

  /// Takes a relay's "peers" event, and says what has changed.
  void take(const std::string& relay, const Packet& packet);

  void fill(StatusPage& page) const;

 private:
  void say(const PeerRow& row, const std::vector<PeerRow>& before);

  Console& console_;
  std::map<std::string, std::vector<PeerRow>> rows_;  // by relay
};

}  // namespace troupe::supervisor
