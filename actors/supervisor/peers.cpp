#include "actors/supervisor/peers.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "actors/supervisor/peer_facts.h"

namespace troupe::supervisor {

namespace {

/// Why an instance of this role computes no prompts for others; empty: it does.
std::string cannot_prefill(const config::Options& options) {
  const config::SplitRole role = options.split.role;
  if (options.takes_fronts()) {
    return "the engine at that queue port (pid " + std::to_string(getpid()) + ") takes fronts at " +
           options.remote.listen + " alone; name that in --prefill-engines";
  }
  if (role == config::SplitRole::prefill) return "";
  return "the instance at that queue port (pid " + std::to_string(getpid()) + ") has --splitwise-role " +
         to_string(role) + ", a prefill instance is needed";
}

PrefillPeers::Setup prefill_setup(const Resources& resources, Console& console, const LogEvent& log) {
  return {.runtime_dir = resources.options.process.runtime_dir,
          .facts = facts_of(resources.options),
          .ranks = resources.options.parallel.tensor_parallel_size,
          .patches = resources.patches.get(),
          .log = log,
          .tell = [&console](const std::string& line) { console.tell(line); },
          .warn = [&console](const std::string& line) { console.warn(line); }};
}

DecodePeer::Setup decode_setup(const Resources& resources, Console& console, const LogEvent& log) {
  return {.facts = facts_of(resources.options),
          .cannot = cannot_prefill(resources.options),
          .ranks = resources.options.parallel.tensor_parallel_size,
          .log = log,
          .tell = [&console](const std::string& line) { console.tell(line); },
          .warn = [&console](const std::string& line) { console.warn(line); }};
}

}  // namespace

Peers::Peers(Resources& resources, Children& children, Console& console, LogEvent log, Duration grace)
    : resources_(resources),
      children_(children),
      grace_(grace),
      prefills_(prefill_setup(resources, console, log), resources.peers, resources.monitors),
      decode_(decode_setup(resources, console, log),
              {.accepted = [this](DecodePeer::Offer offer) { accept(std::move(offer)); },
               .lost = [this] { forget_decode_front(); },
               .left =
                   [this] {
                     forget_decode_front();
                     replace_engine();
                   },
               .front_ended = [this] { resources_.monitors.engine(0).decode_front_reaped(); },
               .pair = [this](std::int64_t rank, ipc::Fd socket) { send_pair(rank, socket); }}),
      relayed_(console),
      relayed_memories_(resources.options.parallel.tensor_parallel_size) {}

void Peers::poll(const Add& add) {
  for (const int fd : prefills_.descriptors())
    add(fd, [this, fd] { prefills_.on_readable(fd, Clock::now()); });
  for (const int fd : decode_.descriptors()) add(fd, [this, fd] { decode_.on_readable(fd, Clock::now()); });
}

void Peers::join(ReceivedRequest request, bool running, TimePoint now) {
  if (!running) decode_.refuse_all("the prefill instance (pid " + std::to_string(getpid()) + ") is ending");
  decode_.join(std::move(request.attached), now);
}

bool Peers::take(const Child& worker, Packet& packet, TimePoint now) {
  const std::string event = packet.text("event");
  const std::int64_t peer = packet.number("peer", -1);
  if (event == "memory") {
    on_memory(worker, packet);
  } else if (event == "peer_unreadable") {
    prefills_.cannot_read(peer, packet.text("why").substr(0, 1000), now);
  } else if (event == "kv_pair") {
    prefills_.send_pair(peer, packet.number("rank", -1), packet.attached);
  } else {
    return false;
  }
  return true;
}

void Peers::on_memory(const Child& worker, Packet& packet) {
  if (resources_.options.split.role != config::SplitRole::prefill) return;
  auto memory = kv_memory_of(packet);
  if (!memory) return;
  if (resources_.options.takes_fronts()) {
    relayed_memories_.set(worker.rank, worker.process.pid(), *std::move(memory));
  } else {
    decode_.set_memory(worker.rank, worker.process.pid(), *std::move(memory));
  }
}

/// The relay that takes fronts gives them the blocks of this instance's workers.
void Peers::tell_relay() {
  const Child& relay = children_.front();
  if (!resources_.options.takes_fronts() || !relay.running() || !relay.ready) return;
  const std::uint64_t life = relayed_memories_.life();
  const RelayTold now{relay.process.pid(), life};
  if (now == relay_told_ || (life == 0 && relay_told_.life == 0)) return;
  for (std::size_t rank = 0; rank < relayed_memories_.ranks(); ++rank) {
    nlohmann::json order{{"do", "kv_memory_gone"}};
    if (life != 0) order = relayed_memories_.members(rank), order["do"] = "kv_memory";
    order["rank"] = rank;
    if (!relay.control.send(order, life == 0 ? -1 : relayed_memories_.file(rank)).ok())
      return;  // tried again
  }
  relay_told_ = now;
}

void Peers::tick(TimePoint now) {
  const Child& front = children_.front();
  prefills_.tick(now, front.running() ? front.process.pidfd() : -1, front.process.pid());
  for (const Child& child : children_.all()) {
    if (child.kind != ChildKind::worker) continue;
    decode_.keep_memory_of(child.rank, child.process.pid());
    (void)relayed_memories_.keep_of(child.rank, child.process.pid());
    if (!child.running() || !child.ready) continue;
    tell_patches(child);
    prefills_.tell_worker(child.rank, child.process.pid(), [&child](const nlohmann::json& order, int file) {
      return child.control.send(order, file).ok();
    });
  }
  decode_.tick(now);
  tell_relay();
  if (resources_.engines.empty()) return;  // they are on other machines
  Child& own = engine();
  if (engine_before_ != 0 && own.running() && own.process.pid() == engine_before_) {
    // Not ok while it is being restarted already, for which the arguments are right.
    (void)children_.replace(own, now + grace_, {{"do", "stop"}});
  } else if (own.running()) {
    engine_before_ = 0;
    decode_.tell_engine(own.process.pid(), own.process.pidfd());
  }
}

void Peers::accept(DecodePeer::Offer offer) {
  Child& own = engine();
  replace_engine();
  link_ = std::move(offer.link);
  block_names_ = std::move(offer.block_names);
  patches_ = std::move(offer.patches);
  ++patches_change_;
  resources_.monitors.engine(0).set_decode_front(std::move(offer.monitor));
  ChildArguments& arguments = own.arguments;
  arguments.link_step_fds.resize(1);
  arguments.link_cache_fds.resize(1);
  arguments.link_step_fds.push_back(link_.step.get());
  arguments.link_cache_fds.push_back(link_.cache.get());
  arguments.names_fds = {block_names_.get()};
}

// tick() does it, with the arguments as they are then.
void Peers::replace_engine() {
  const Child& own = engine();
  engine_before_ = own.running() ? own.process.pid() : 0;
}

// An engine that runs keeps its mapping, and goes on without that front.
void Peers::forget_decode_front() {
  ChildArguments& arguments = engine().arguments;
  arguments.link_step_fds.resize(1);
  arguments.link_cache_fds.resize(1);
  link_ = {};
  patches_.reset();
  ++patches_change_;
}

// Before the engine that knows the decode instance's front is started: an image whose patches the worker does
// not find is given back.
void Peers::tell_patches(const Child& worker) {
  if (resources_.options.split.role != config::SplitRole::prefill) return;
  told_patches_.resize(static_cast<std::size_t>(resources_.options.parallel.tensor_parallel_size));
  Told& told = told_patches_[static_cast<std::size_t>(worker.rank)];
  const int pid = worker.process.pid();
  if (told.pid == pid && told.change == patches_change_) return;
  const bool knows = told.pid == pid;  // of an earlier one
  if (patches_ ? worker.control.send({{"do", "patches"}}, patches_.get()).ok()
               : !knows || worker.control.send({{"do", "patches_gone"}}).ok()) {
    told = {pid, patches_change_};
  }
}

Child& Peers::engine() {
  return *std::find_if(children_.all().begin(), children_.all().end(),
                       [](const Child& child) { return child.kind == ChildKind::engine; });
}

// A worker that is not there closes it, and the other one tries again.
void Peers::send_pair(std::int64_t rank, const ipc::Fd& socket) {
  for (const Child& child : children_.all()) {
    if (child.kind == ChildKind::worker && child.rank == rank && child.running() && child.ready)
      (void)child.control.send({{"do", "kv_pair"}}, socket.get());
  }
}

void Peers::fill(StatusPage& page) const {
  page.role = to_string(resources_.options.split.role);
  page.peers = prefills_.rows();
  for (PeerRow& row : decode_.rows()) page.peers.push_back(std::move(row));
  relayed_.fill(page);
}

}  // namespace troupe::supervisor
