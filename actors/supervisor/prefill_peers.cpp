#include "actors/supervisor/prefill_peers.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>

#include "actors/supervisor/child_process.h"
#include "actors/supervisor/local_requests.h"
#include "base/json.h"
#include "config/options.h"
#include "ipc/rendezvous.h"

namespace troupe::supervisor {

namespace {

// A unix socket accepts at once unless its owner is stopped.
constexpr Duration kConnectPatience = std::chrono::milliseconds(5);

std::string name_of(int port) { return "the prefill instance at queue port " + std::to_string(port); }

}  // namespace

PrefillPeers::PrefillPeers(Setup setup, const std::vector<PeerResources>& peers, ServerLinks& links)
    : setup_(std::move(setup)), links_(links) {
  for (const PeerResources& resources : peers) {
    Peer& peer = peers_.emplace_back();
    peer.index = peers_.size() - 1;
    peer.resources = &resources;
  }
}

std::vector<int> PrefillPeers::descriptors() const {
  std::vector<int> all;
  for (const Peer& peer : peers_) {
    if (peer.control.open()) all.push_back(peer.control.fd());
    if (peer.state == State::leaving) all.push_back(peer.engine.get());
  }
  return all;
}

void PrefillPeers::on_readable(int fd, TimePoint now) {
  for (Peer& peer : peers_) {
    if (peer.state == State::leaving && peer.engine.get() == fd) return end_of_engine(peer, now);
    if (!peer.control.open() || peer.control.fd() != fd) continue;
    for (int i = 0; i < kMostPeerPackets && peer.control.open(); ++i) {
      Packet packet = peer.control.receive(TimePoint{});
      if (packet.kind == Packet::Kind::timeout) return;
      if (packet.kind == Packet::Kind::closed) return on_closed(peer, now);
      take(peer, packet, now);
    }
    return;
  }
}

void PrefillPeers::tick(TimePoint now, int front, int front_pid) {
  for (Peer& peer : peers_) {
    const bool apart = peer.state == State::absent || peer.state == State::refused;
    if (apart && now >= peer.try_at) join(peer, now);
    if (peer.state == State::offered && now >= peer.answer_by) {
      refuse(peer, name_of(peer.resources->port) + " (pid " + std::to_string(peer.pid) + ") does not answer",
             now);
    }
    if (peer.is_in() && front >= 0 && peer.told_front != front_pid &&
        peer.control.send({{"do", "front"}}, front).ok()) {
      peer.told_front = front_pid;
    }
  }
}

void PrefillPeers::join(Peer& peer, TimePoint now) {
  peer.try_at = now + kRetry;
  auto connection = ipc::connect_port(setup_.runtime_dir, ipc::PortKind::engine_worker_queue,
                                      peer.resources->port, Clock::now() + kConnectPatience);
  if (!connection.ok()) {
    peer.state = State::absent;
    peer.pid = 0;
    peer.why.clear();
    return;
  }
  const int pid = pid_of_peer(connection->get());
  if (pid != 0 && pid == peer.unreadable_pid) {
    peer.pid = pid;
    peer.state = State::refused;
    peer.try_at = now + kRetryRefused;
    return;
  }
  auto pair = make_control_pair();
  if (!pair.ok()) return;
  const std::string line = to_line({.kind = LocalRequest::Kind::join});
  if (send_attached(connection->get(), line.data(), line.size(), pair->theirs.get()) !=
      static_cast<ssize_t>(line.size())) {
    return;
  }
  // It may have refused and closed after the first: then its answer is there to be read.
  const PeerResources& shared = *peer.resources;
  (void)pair->ours.send({{"do", "offer"}, {"facts", setup_.facts}}, shared.link.step.get());
  (void)pair->ours.send({{"do", "link_cache"}}, shared.link.cache.get());
  if (setup_.patches >= 0) (void)pair->ours.send({{"do", "patches"}}, setup_.patches);
  (void)pair->ours.send({{"do", "names"}}, shared.block_names.get());
  peer.state = State::offered;
  peer.pid = pid;
  peer.asked = *std::move(connection);
  peer.control = std::move(pair->ours);
  peer.told_front = 0;
  peer.answer_by = now + kPatience;
}

void PrefillPeers::take(Peer& peer, Packet& packet, TimePoint now) {
  const std::string event = packet.text("event");
  if (event == "refused" && peer.state == State::offered) {
    refuse(peer, packet.text("why").substr(0, 1000), now);
  } else if (event == "accepted" && peer.state == State::offered) {
    peer.state = State::accepted;
    peer.asked.reset();
  } else if (event == "engine" && peer.is_in() && packet.attached) {
    peer.engine = std::move(packet.attached);
    if (peer.state == State::joined) return;
    peer.state = State::joined;
    peer.why.clear();
    setup_.log(LogLevel::info, "prefill_joined", {kv("port", peer.resources->port), kv("pid", peer.pid)});
    setup_.tell("joined    " + name_of(peer.resources->port) + " (pid " + std::to_string(peer.pid) + ")\n");
  } else if (event == "memory" && peer.is_in()) {
    take_memory(peer, packet);
  } else if (event == "memory_gone" && peer.is_in()) {
    const std::int64_t rank = packet.number("rank", -1);
    if (rank < 0 || static_cast<std::size_t>(rank) >= peer.ranks.size()) return;
    peer.ranks[static_cast<std::size_t>(rank)].forget();
  }
}

void PrefillPeers::take_memory(Peer& peer, Packet& packet) {
  const std::int64_t rank = packet.number("rank", -1), ranks = packet.number("ranks", -1);
  auto memory = kv_memory_of(packet);
  if (rank < 0 || rank >= ranks || ranks > config::kMostRanks || !memory) {
    setup_.log(LogLevel::warning, "prefill_memory_ignored",
               {kv("port", peer.resources->port), kv("rank", rank), kv("ranks", ranks)});
    return;
  }
  peer.rank_count = static_cast<int>(ranks);
  peer.ranks.resize(std::max(peer.ranks.size(), static_cast<std::size_t>(ranks)));
  Rank& of = peer.ranks[static_cast<std::size_t>(rank)];
  of.told.resize(static_cast<std::size_t>(setup_.ranks));
  of.memory = std::move(memory);
  ++of.change;
}

// An older program answers the line on its connection, and closes both.
void PrefillPeers::on_closed(Peer& peer, TimePoint now) {
  if (peer.state != State::offered) return on_lost(peer, now);
  std::array<char, 1000> answer{};
  const ssize_t n = recv(peer.asked.get(), answer.data(), answer.size(), MSG_DONTWAIT);
  const auto said = json::parse({answer.data(), static_cast<std::size_t>(std::max<ssize_t>(n, 0))});
  if (const std::string* error = said ? json::text(json::member(*said, "error")) : nullptr)
    return refuse(peer, *error, now);
  peer.control.close();
  peer.asked.reset();
  peer.state = State::absent;
  peer.pid = 0;
  peer.try_at = now + kRetry;
}

void PrefillPeers::refuse(Peer& peer, std::string why, TimePoint now) {
  peer.control.close();
  peer.asked.reset();
  peer.state = State::refused;
  peer.try_at = now + kRetryRefused;
  if (peer.why == why) return;  // it was said
  peer.why = std::move(why);
  setup_.log(LogLevel::warning, "prefill_refused",
             {kv("port", peer.resources->port), kv("pid", peer.pid), kv("why", peer.why)});
  setup_.warn("troupe: " + name_of(peer.resources->port) + " has not joined: " + peer.why +
              "; prompts are computed here");
}

void PrefillPeers::on_lost(Peer& peer, TimePoint now) {
  setup_.log(LogLevel::warning, "prefill_lost", {kv("port", peer.resources->port), kv("pid", peer.pid)});
  setup_.warn("troupe: " + name_of(peer.resources->port) + " (pid " + std::to_string(peer.pid) +
              ") is gone; prompts are computed here until one is there again");
  leave(peer, now);
}

void PrefillPeers::send_pair(std::int64_t index, std::int64_t rank, const ipc::Fd& socket) {
  if (index < 0 || index >= static_cast<std::int64_t>(peers_.size()) || !socket) return;
  const Peer& peer = peers_[static_cast<std::size_t>(index)];
  if (peer.is_in()) (void)peer.control.send({{"do", "kv_pair"}, {"rank", rank}}, socket.get());
}

void PrefillPeers::cannot_read(std::int64_t index, const std::string& why, TimePoint now) {
  if (index < 0 || index >= static_cast<std::int64_t>(peers_.size())) return;
  Peer& peer = peers_[static_cast<std::size_t>(index)];
  if (!peer.is_in()) return;
  peer.why = why;
  peer.unreadable_pid = peer.pid;
  setup_.log(LogLevel::warning, "prefill_unreadable",
             {kv("port", peer.resources->port), kv("pid", peer.pid), kv("why", why)});
  setup_.warn("troupe: " + name_of(peer.resources->port) + " (pid " + std::to_string(peer.pid) +
              ") is of no use: " + why + "; prompts are computed here");
  peer.control.tell({{"do", "leave"}, {"why", why}});
  leave(peer, now);
}

// Its engine ends now, and may still use the link until then.
void PrefillPeers::leave(Peer& peer, TimePoint now) {
  peer.control.close();
  for (Rank& rank : peer.ranks) rank.forget();
  peer.state = State::leaving;
  if (!peer.engine || has_ended(peer.engine.get())) end_of_engine(peer, now);
}

void PrefillPeers::end_of_engine(Peer& peer, TimePoint now) {
  links_.peer(peer.index).reaped(ipc::Side::lower);
  peer.engine.reset();
  peer.state = State::absent;
  peer.pid = 0;
  peer.try_at = now;
}

void PrefillPeers::tell_worker(int rank, int pid, const SendMemory& send) {
  for (Peer& peer : peers_) {
    for (std::size_t theirs = 0; theirs < peer.ranks.size(); ++theirs) {
      Rank& of = peer.ranks[theirs];
      if (of.told.empty()) continue;  // it has never had a memory
      Told& told = of.told[static_cast<std::size_t>(rank)];
      if (told.pid == pid && told.change == of.change) continue;
      bool sent = true;
      if (of.memory) {
        nlohmann::json order = of.memory->members();
        order.update(
            {{"do", "peer_memory"}, {"peer", peer.index}, {"rank", theirs}, {"ranks", peer.rank_count}});
        sent = send(order, of.memory->file.get());
      } else if (told.pid == pid) {  // it may have that of a worker that is gone
        sent = send({{"do", "peer_gone"}, {"peer", peer.index}, {"rank", theirs}}, -1);
      }
      if (sent) told = {pid, of.change};
    }
  }
}

std::vector<PeerRow> PrefillPeers::rows() const {
  std::vector<PeerRow> rows;
  for (const Peer& peer : peers_) {
    const char* state = peer.state == State::joined     ? "joined"
                        : peer.state == State::accepted ? "joining"
                        : !peer.why.empty()             ? "refused"
                                                        : "absent";
    rows.push_back({"prefill", peer.resources->port, peer.pid, state, peer.is_in() ? "" : peer.why});
  }
  return rows;
}

}  // namespace troupe::supervisor
