#include "actors/supervisor/decode_peer.h"

#include <unistd.h>

#include <algorithm>

#include "actors/supervisor/child_process.h"
#include "actors/supervisor/peer_facts.h"
#include "ipc/block_names.h"
#include "ipc/patch_region.h"

namespace troupe::supervisor {

void DecodePeer::join(ipc::Fd control, TimePoint now) {
  if (waiting_.size() >= kMostWaiting) return;
  Waiting& waiting = waiting_.emplace_back();
  waiting.pid = pid_of_peer(control.get());
  waiting.control = Control(std::move(control));
  waiting.until = now + kPatience;
  if (read(waiting, now)) waiting_.pop_back();
}

std::vector<int> DecodePeer::descriptors() const {
  std::vector<int> all;
  for (const Waiting& waiting : waiting_) all.push_back(waiting.control.fd());
  if (control_.open()) all.push_back(control_.fd());
  if (!control_.open() && front_) all.push_back(front_.get());
  return all;
}

void DecodePeer::on_readable(int fd, TimePoint now) {
  if (control_.open() && control_.fd() == fd) return read_accepted();
  if (!control_.open() && front_ && front_.get() == fd) return end_of_front();
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [fd](const Waiting& one) { return one.control.fd() == fd; });
  if (it != waiting_.end() && read(*it, now)) waiting_.erase(it);
}

void DecodePeer::tick(TimePoint now) {
  std::erase_if(waiting_, [now](const Waiting& one) { return now >= one.until; });
  tell_memories();
}

bool DecodePeer::read(Waiting& waiting, TimePoint now) {
  for (int i = 0; i < kMostPeerPackets; ++i) {
    Packet packet = waiting.control.receive(TimePoint{});
    if (packet.kind == Packet::Kind::timeout) return now >= waiting.until;
    if (packet.kind == Packet::Kind::closed) return true;
    const std::string order = packet.text("do");
    if (order == "offer") {
      waiting.facts = packet.texts("facts");
      waiting.link.step = std::move(packet.attached);
      if (!setup_.cannot.empty()) return refuse(waiting, setup_.cannot), true;
    } else if (order == "link_cache") {
      waiting.link.cache = std::move(packet.attached);
    } else if (order == "patches") {
      waiting.patches = std::move(packet.attached);
    } else if (order == "names") {
      consider(waiting, std::move(packet.attached));
      return true;
    }
  }
  return false;
}

void DecodePeer::consider(Waiting& waiting, ipc::Fd block_names) {
  if (control_.open()) {
    return refuse(waiting, "the prefill instance (pid " + std::to_string(getpid()) +
                               ") computes for another decode instance already (pid " + std::to_string(pid_) +
                               "), not also for that with pid " + std::to_string(waiting.pid));
  }
  if (const std::string differs =
          difference({setup_.facts, "the prefill instance (pid " + std::to_string(getpid()) + ")"},
                     {waiting.facts, "the decode instance (pid " + std::to_string(waiting.pid) + ")"});
      !differs.empty()) {
    return refuse(waiting, differs);
  }
  auto monitor = ipc::LinkMonitor::attach(waiting.link.step.get(), waiting.link.cache.get());
  if (!monitor.ok()) return refuse(waiting, "its link cannot be used: " + monitor.status().message);
  if (const auto names = ipc::BlockNames::attach(block_names.get()); !names.ok())
    return refuse(waiting, "its table of block names cannot be used: " + names.status().message);
  if (waiting.patches) {
    const auto patches = ipc::PatchRegion::attach(waiting.patches.get());
    if (!patches.ok())
      return refuse(waiting, "its memory for images cannot be used: " + patches.status().message);
  }
  if (!waiting.control.send({{"event", "accepted"}}).ok()) return;  // it has gone meanwhile
  control_ = std::move(waiting.control);
  pid_ = waiting.pid;
  told_engine_ = 0;
  told_life_ = 0;
  front_.reset();
  last_refusal_.clear();
  setup_.log(LogLevel::info, "decode_joined", {kv("pid", pid_)});
  setup_.tell("joined    the decode instance with pid " + std::to_string(pid_) +
              "; the engine is started again for it\n");
  events_.accepted(
      {std::move(waiting.link), std::move(block_names), *std::move(monitor), std::move(waiting.patches)});
}

// It asks again and again: that is said once.
void DecodePeer::refuse(const Waiting& waiting, const std::string& why) {
  waiting.control.tell({{"event", "refused"}, {"why", why}});
  if (why == last_refusal_) return;
  last_refusal_ = why;
  setup_.log(LogLevel::warning, "decode_refused", {kv("pid", waiting.pid), kv("why", why)});
}

void DecodePeer::read_accepted() {
  for (int i = 0; i < kMostPeerPackets; ++i) {
    Packet packet = control_.receive(TimePoint{});
    if (packet.kind == Packet::Kind::timeout) return;
    if (packet.kind == Packet::Kind::closed) return on_lost();
    const std::string order = packet.text("do");
    if (order == "leave") return on_left(packet.text("why").substr(0, 1000));
    if (order == "front" && packet.attached) front_ = std::move(packet.attached);
    if (order == "kv_pair" && packet.attached)
      events_.pair(packet.number("rank", -1), std::move(packet.attached));
  }
}

void DecodePeer::on_lost() {
  setup_.log(LogLevel::warning, "decode_lost", {kv("pid", pid_)});
  setup_.warn("troupe: the decode instance with pid " + std::to_string(pid_) + " is gone");
  close();
  events_.lost();
}

void DecodePeer::on_left(const std::string& why) {
  setup_.log(LogLevel::warning, "decode_left", {kv("pid", pid_), kv("why", why)});
  setup_.warn("troupe: the decode instance with pid " + std::to_string(pid_) +
              " computes its prompts itself: " + why);
  close();
  events_.left();
}

// Its front may still use the link until it ends.
void DecodePeer::close() {
  control_.close();
  pid_ = 0;
  if (!front_ || has_ended(front_.get())) end_of_front();
}

void DecodePeer::end_of_front() {
  front_.reset();
  events_.front_ended();
}

void DecodePeer::tell_engine(int pid, int pidfd) {
  if (!control_.open() || pid == told_engine_) return;
  if (control_.send({{"event", "engine"}}, pidfd).ok()) told_engine_ = pid;
}

void DecodePeer::set_memory(int rank, int pid, KvMemory memory) {
  memories_.set(rank, pid, std::move(memory));
  tell_memories();
}

void DecodePeer::keep_memory_of(int rank, int pid) {
  if (memories_.keep_of(rank, pid) && control_.open())
    control_.tell({{"event", "memory_gone"}, {"rank", rank}});
}

void DecodePeer::tell_memories() {
  const std::uint64_t life = memories_.life();
  if (!control_.open() || life == 0 || life == told_life_) return;
  for (std::size_t rank = 0; rank < memories_.ranks(); ++rank) {
    nlohmann::json event = memories_.members(rank);
    event["event"] = "memory";
    event["rank"] = rank;
    event["ranks"] = memories_.ranks();
    if (!control_.send(event, memories_.file(rank)).ok()) return;  // tried again
  }
  told_life_ = life;
}

std::vector<PeerRow> DecodePeer::rows() const {
  if (!control_.open()) return {};
  return {{"decode", 0, pid_, told_engine_ != 0 ? "joined" : "joining", ""}};
}

}  // namespace troupe::supervisor
