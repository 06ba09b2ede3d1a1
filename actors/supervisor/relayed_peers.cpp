#include "actors/supervisor/relayed_peers.h"

#include <algorithm>
#include <utility>

namespace troupe::supervisor {

namespace {

std::string name_of(const PeerRow& row) {
  return "the " + row.role + (row.role == "prefill" ? " engine at " : " at ") + row.address;
}

}  // namespace

void RelayedPeers::take(const std::string& relay, const Packet& packet) {
  const auto peers = packet.message.find("peers");
  if (peers == packet.message.end() || !peers->is_array()) return;
  std::vector<PeerRow> rows;
  for (const auto& peer : *peers) {
    if (!peer.is_object()) continue;
    const Packet read{Packet::Kind::message, peer, {}};
    PeerRow& row = rows.emplace_back();
    row.role = read.text("role");
    row.address = read.text("address");
    row.state = read.text("state");
    row.why = read.text("why");
  }
  std::vector<PeerRow>& before = rows_[relay];
  for (const PeerRow& row : rows) say(row, before);
  for (const PeerRow& row : before) {
    if (std::ranges::none_of(rows, [&](const PeerRow& one) { return one.address == row.address; }))
      console_.tell("left      " + name_of(row) + "\n");
  }
  before = std::move(rows);
}

void RelayedPeers::say(const PeerRow& row, const std::vector<PeerRow>& before) {
  const bool known = std::ranges::any_of(before, [&](const PeerRow& one) {
    return one.address == row.address && one.state == row.state && one.why == row.why;
  });
  if (known) return;
  if (row.state == "joined") {
    console_.tell("joined    " + name_of(row) + "\n");
  } else if (!row.why.empty()) {
    console_.warn("troupe: " + name_of(row) + (row.state == "refused" ? " has not joined: " : " ") + row.why);
  }
}

void RelayedPeers::fill(StatusPage& page) const {
  for (const auto& [relay, rows] : rows_) page.peers.insert(page.peers.end(), rows.begin(), rows.end());
}

}  // namespace troupe::supervisor
