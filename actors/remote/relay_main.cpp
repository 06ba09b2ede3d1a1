#include "actors/remote/relay_main.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "actors/engine/child_main.h"
#include "actors/remote/node_facts.h"
#include "actors/remote/relay.h"
#include "actors/supervisor/kv_memory.h"
#include "model/swap/kv_layout.h"

namespace troupe::remote {
namespace {

using nlohmann::json;
using supervisor::Control;
using supervisor::Packet;

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kServedInterval = std::chrono::seconds(1);
/// A drain ends when nothing has run for so long: what fronts send before they hear of it arrives.
constexpr auto kIdle = std::chrono::milliseconds(500);

Result<RelaySetup> read_setup(const supervisor::ChildArguments& arguments, const config::Options& options,
                              const std::string& name) {
  auto keys = load_cluster_keys(options.remote.cluster_keys);
  if (!keys.ok()) return keys.status();
  auto facts = node_facts(options, arguments.vocabulary_fd);
  if (!facts.ok()) return facts.status();
  const auto log = Log::open(name, options.log);
  const std::string node = keys->node;
  return RelaySetup{{node, *std::move(facts)}, *std::move(keys), log.ok() ? *log : Log()};
}

/// Null where no table was handed over.
Result<std::shared_ptr<ipc::BlockNames>> open_names(const supervisor::ChildArguments& arguments,
                                                    ipc::Access access) {
  if (arguments.names_fds.empty()) return std::shared_ptr<ipc::BlockNames>();
  auto table = ipc::BlockNames::attach(arguments.names_fds.front(), access);
  if (!table.ok()) return table.status();
  return std::make_shared<ipc::BlockNames>(*std::move(table));
}

Result<std::vector<ipc::BlockFetches>> attach_fetches(const std::vector<int>& fds) {
  std::vector<ipc::BlockFetches> all;
  for (const int fd : fds) {
    auto attached = ipc::BlockFetches::attach(fd);
    if (!attached.ok()) return attached.status();
    all.push_back(*std::move(attached));
  }
  return all;
}

/// Tells the supervisor who the peers are, whenever that changes.
class PeersReport {
 public:
  explicit PeersReport(const Control& control) : control_(control) {}

  void tell(const std::vector<PeerState>& peers) {
    if (told_ && *told_ == peers) return;
    json rows = json::array();
    for (const PeerState& peer : peers)
      rows.push_back(
          {{"role", peer.role}, {"address", peer.address}, {"state", peer.state}, {"why", peer.why}});
    if (control_.send({{"event", "peers"}, {"peers", rows}}).ok()) told_ = peers;
  }

 private:
  const Control& control_;
  std::optional<std::vector<PeerState>> told_;
};

/// Beside a front.
Status run_dialer(const supervisor::ChildArguments& arguments, Control& control,
                  const config::Options& options) {
  const auto index = static_cast<std::size_t>(arguments.rank);
  if (index >= options.relayed_engines().size())
    return failure(Code::internal, "a relay needs the engine that it connects to");
  const auto address = config::read_address(options.relayed_engines()[index]);
  if (!address.ok()) return address.status();
  auto setup = read_setup(arguments, options, "relay-" + std::to_string(index));
  if (!setup.ok()) return setup.status();
  setup->own.server = std::to_string(::getppid());  // the supervisor
  auto end = ipc::LowerEnd::attach(arguments.link_step_fds.front(), arguments.link_cache_fds.front());
  if (!end.ok()) return end.status();
  const auto names = open_names(arguments, ipc::Access::write);
  if (!names.ok()) return names.status();
  if (*names) (*names)->distrust();  // what a relay before this one has entered
  auto fetches = attach_fetches(arguments.fetch_fds);
  if (!fetches.ok()) return fetches.status();
  std::shared_ptr<const ipc::PatchRegion> region;
  if (arguments.patches_fd >= 0) {
    auto attached = ipc::PatchRegion::attach(arguments.patches_fd);
    if (!attached.ok()) return attached.status();
    region = std::make_shared<ipc::PatchRegion>(*std::move(attached));
  }
  const Dialer dialer(*std::move(setup), *std::move(end), *names, *address, region, *std::move(fetches));
  control.tell({{"event", "state"}, {"state", "ready"}});
  PeersReport report(control);
  TimePoint next_beat{};
  do {
    report.tell({dialer.peer()});
    if (Clock::now() >= next_beat) {  // on the link it beats for the engine
      control.tell({{"event", "beat"}});
      next_beat = Clock::now() + kBeatPeriod;
    }
  } while (!asked_to_end(control.receive(Clock::now() + kTick)));
  return {};
}

/// Beside an engine, in the place of a front: it obeys the supervisor as one does.
class GateProcess {
 public:
  GateProcess(Control& control, Gate& gate, std::shared_ptr<const PixelStore> pixels, KvServer& kv, Log log)
      : control_(control),
        gate_(gate),
        pixels_(std::move(pixels)),
        kv_(kv),
        log_(std::move(log)),
        report_(control) {}

  /// Returns when the supervisor has gone or a drain is over.
  void run() {
    for (;;) {
      gate_.beat();
      report_.tell(gate_.peers());
      tell_served();
      if (!gate_.idle()) idle_since_ = Clock::now();
      if (drain_until_ && Clock::now() >= std::min(*drain_until_, idle_since_ + kIdle)) return;
      Packet packet = control_.receive(Clock::now() + kTick);
      if (packet.kind == Packet::Kind::closed) return;
      if (packet.kind != Packet::Kind::message) continue;
      const std::string what = packet.text("do");
      if (what == "kv_memory" || what == "kv_memory_gone") take_memory(packet);
      if (what == "status") tell_status(packet.number("id"));
      if (what == "drain" && !drain_until_) {
        idle_since_ = Clock::now();
        drain_until_ = idle_since_ + std::chrono::seconds(packet.number("deadline_s"));
        gate_.drain();
      }
    }
  }

 private:
  /// Without the file: it has ended.
  void take_memory(Packet& packet) {
    const auto rank = static_cast<std::size_t>(std::max<std::int64_t>(packet.number("rank"), 0));
    const auto memory = supervisor::kv_memory_of(packet);
    if (!memory) return kv_.forget_memory(rank);
    if (const Status status = kv_.set_memory(rank, *memory); !status.ok())
      log_.warning("kv_memory_refused", {kv("rank", rank), kv("why", status.message)});
  }

  void tell_status(std::int64_t id) {
    const EngineCounts counts = gate_.counts();
    const CacheStatus& kv = counts.last.kv;
    json queues = {{{"name", "running"}, {"depth", counts.last.running}, {"capacity", 0}},
                   {{"name", "waiting"}, {"depth", counts.last.waiting}, {"capacity", 0}},
                   {{"name", "fronts"}, {"depth", gate_.peers().size()}, {"capacity", gate_.places()}}};
    if (pixels_) {  // bytes of images and videos
      queues.push_back({{"name", "media"},
                        {"depth", pixels_->used()},
                        {"capacity", pixels_->most_bytes() * gate_.places()}});
    }
    control_.tell({{"event", "status"},
                   {"id", id},
                   {"state", drain_until_ ? "draining" : "ready"},
                   {"tokens", {{"prompt", counts.prompt_tokens}, {"generated", counts.generated_tokens}}},
                   {"kv_blocks",
                    {{"total", kv.total},
                     {"free", kv.free},
                     {"cached", kv.cached},
                     {"leased", kv.leased},
                     {"moving", kv.moving}}},
                   {"queues", std::move(queues)}});
  }

  /// What is served makes earlier deaths count no more.
  void tell_served() {
    const std::int64_t tokens = gate_.counts().generated_tokens;
    if (tokens == told_tokens_ || Clock::now() < next_served_) return;
    control_.tell({{"event", "served"}, {"requests", 0}, {"tokens", tokens - told_tokens_}});
    told_tokens_ = tokens;
    next_served_ = Clock::now() + kServedInterval;
  }

  Control& control_;
  Gate& gate_;
  const std::shared_ptr<const PixelStore> pixels_;  // null: the model does not see
  KvServer& kv_;
  const Log log_;
  PeersReport report_;
  std::int64_t told_tokens_ = 0;
  TimePoint next_served_{}, idle_since_{};
  std::optional<TimePoint> drain_until_;
};

Status run_gate(const supervisor::ChildArguments& arguments, Control& control,
                const config::Options& options) {
  auto setup = read_setup(arguments, options, "relay");
  if (!setup.ok()) return setup.status();
  std::vector<ipc::UpperEnd> ends;
  for (std::size_t i = 0; i < arguments.link_step_fds.size(); ++i) {
    auto end = ipc::UpperEnd::attach(arguments.link_step_fds[i], arguments.link_cache_fds[i]);
    if (!end.ok()) return end.status();
    ends.push_back(*std::move(end));
  }
  const auto names = open_names(arguments, ipc::Access::read);
  if (!names.ok()) return names.status();
  const std::string name = "the engine at " + options.remote.listen + " (node " + setup->own.node + ")";
  std::shared_ptr<PixelStore> pixels;
  if (arguments.patches_fd >= 0) {
    auto region = ipc::PatchWriter::attach(arguments.patches_fd);
    if (!region.ok()) return region.status();
    pixels = std::make_shared<PixelStore>(*std::move(region),
                                          static_cast<std::uint64_t>(options.media.memory_bytes));
  }
  const bool gives = options.split.role == config::SplitRole::prefill;
  auto staged = attach_fetches(arguments.give_fds);
  if (!staged.ok()) return staged.status();
  const auto layout = gives ? model::kv_layout_of(options) : model::KvLayout();
  if (!layout.ok()) return layout.status();
  KvServer kv(gives ? static_cast<std::size_t>(options.parallel.tensor_parallel_size) : 0, *layout, *names,
              *std::move(staged));
  const Log log = setup->log;
  Gate gate(*std::move(setup), std::move(ends), *names, arguments.listen_fd, name, pixels,
            gives ? &kv : nullptr);
  control.tell({{"event", "state"}, {"state", "ready"}});
  GateProcess(control, gate, pixels, kv, log).run();
  return {};
}

}  // namespace

int relay_main(const std::vector<std::string>& words) {
  return run_child("relay", words,
                   [](const auto& arguments, Control& control, const config::Options& options) {
                     return arguments.listen_fd >= 0 ? run_gate(arguments, control, options)
                                                     : run_dialer(arguments, control, options);
                   });
}

}  // namespace troupe::remote
