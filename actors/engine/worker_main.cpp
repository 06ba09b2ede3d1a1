#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "actors/engine/child_main.h"
#include "actors/engine/engine_main.h"
#include "actors/supervisor/kv_memory.h"
#include "actors/worker/block_fetcher.h"
#include "actors/worker/block_giver.h"
#include "actors/worker/kv_pairs.h"
#include "actors/worker/worker_loop.h"
#include "base/log.h"
#include "model/make_executor.h"
#include "model/preflight.h"

namespace troupe {
namespace {

using nlohmann::json;
using supervisor::Control;

constexpr int kLastWords = 500;  // milliseconds

/// Tells the supervisor of the progress of loading a few times a second, and logs it at most once a second.
model::LoadProgress progress_to(const Control& control, const Log& log) {
  const TimePoint begin = Clock::now();
  return [&control, log, begin, reported = TimePoint{}, last = begin](std::uint64_t done,
                                                                      std::uint64_t total) mutable {
    const TimePoint now = Clock::now();
    if (now - reported >= std::chrono::milliseconds(200) || done == total) {
      reported = now;
      control.tell({{"event", "loading"}, {"done_bytes", done}, {"total_bytes", total}});
    }
    if (now - last < std::chrono::seconds(1) || done == 0) return;
    last = now;
    const double seconds = std::chrono::duration<double>(now - begin).count();
    const double rate = static_cast<double>(done) / seconds;
    log.info("loading", {kv("percent", 100.0 * static_cast<double>(done) / static_cast<double>(total)),
                         kv("gb_per_s", rate * 1e-9), kv("eta_s", static_cast<double>(total - done) / rate)});
  };
}

model::RankPlace place_of(const supervisor::ChildArguments& arguments,
                          const config::ParallelOptions& parallel) {
  return {{arguments.rank, parallel.tensor_parallel_size, parallel.enable_expert_parallel},
          arguments.ranks_fd,
          arguments.engine,
          parallel.data_parallel_size};
}

/// Not zero.
std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random() | 1;
}

/// Gives the supervisor the KV memory that other instances may read, if there is any.
Status tell_memory(const Control& control, const Executor& executor, std::uint64_t life) {
  if (executor.kv_memory_fd() < 0) return {};
  const wire::Capacity capacity = executor.capacity();
  const auto bytes = static_cast<std::int64_t>(capacity.kv_bytes);
  json event = supervisor::KvMemory{life, capacity.kv_blocks, bytes / capacity.kv_blocks, {}}.members();
  event["event"] = "memory";
  return control.send(event, executor.kv_memory_fd());
}

/// Prefill engines on other machines come behind the instances of this one.
Status attach_remote_peers(const supervisor::ChildArguments& arguments, const config::SplitOptions& split,
                           Executor& executor) {
  const wire::Capacity capacity = executor.capacity();
  auto peer = static_cast<std::uint32_t>(split.prefill_ports.size());
  for (const int fd : arguments.fetch_fds) {
    auto fetches = ipc::BlockFetches::attach(fd);
    if (!fetches.ok()) return fetches.status();
    const auto blocks = static_cast<std::uint64_t>(std::max(1, capacity.kv_blocks));
    if (Status status = fetches->begin(capacity.kv_bytes / blocks); !status.ok()) return status;
    const std::span<std::byte> memory = fetches->memory();
    Status status = executor.attach_remote_peer(peer++, fetch_through(*std::move(fetches)), memory);
    if (!status.ok()) return status;
  }
  return {};
}

/// Null: this worker gives no KV blocks away, or other processes read them themselves.
Result<std::unique_ptr<BlockGiver>> give_blocks(const supervisor::ChildArguments& arguments,
                                                Executor& executor, std::uint64_t life) {
  if (arguments.give_fds.empty()) return std::unique_ptr<BlockGiver>();
  auto asked = ipc::BlockFetches::attach(arguments.give_fds.front());
  if (!asked.ok()) return asked.status();
  auto read = executor.block_reader(asked->memory());
  if (!read.ok()) return read.status();
  if (!*read) return std::unique_ptr<BlockGiver>();
  return std::make_unique<BlockGiver>(*std::move(asked), life, *std::move(read));
}

Result<PatchRegions::Region> patches_at(int fd) {
  if (fd < 0) return PatchRegions::Region();
  Result<ipc::PatchRegion> attached = ipc::PatchRegion::attach(fd);
  if (!attached.ok()) return attached.status();
  return PatchRegions::Region(std::make_shared<ipc::PatchRegion>(std::move(*attached)));
}

/// Obeys an order about the decode instance's patches.
void obey(const supervisor::Packet& packet, PatchRegions& patches, const Log& log) {
  const std::string order = packet.text("do");
  if (order != "patches" && order != "patches_gone") return;
  const auto region = patches_at(order == "patches" ? packet.attached.get() : -1);
  if (!region.ok()) log.warning("patches_refused", {kv("why", region.status().message)});
  patches.set(supervisor::kDecodeFront, region.ok() ? *region : nullptr);
}

void tell_unreadable(const Control& control, std::int64_t peer, const std::string& why) {
  control.tell({{"event", "peer_unreadable"}, {"peer", peer}, {"why", why}});
}

KvPairs::Setup pairs_setup(const config::SplitOptions& split, const Control& control, const Log& log) {
  return {.always = split.kv_transfer == config::KvTransfer::nccl,
          .send =
              [&control](std::uint32_t peer, int rank, int socket) {
                return control.send({{"event", "kv_pair"}, {"peer", peer}, {"rank", rank}}, socket).ok();
              },
          .refused = [&control](std::uint32_t peer,
                                const std::string& why) { tell_unreadable(control, peer, why); },
          .log = log};
}

/// Obeys an order about the KV memory of another instance. What cannot be used is told, and copies from it
/// fail.
void obey(supervisor::Packet& packet, KvPairs& pairs, const Control& control, const Log& log) {
  const std::string order = packet.text("do");
  const std::int64_t peer = packet.number("peer", -1);
  const auto index = static_cast<std::uint32_t>(peer);
  const auto rank = static_cast<int>(packet.number("rank", -1));
  if (order == "peer_gone") pairs.detach(index, rank);
  if (order != "peer_memory") return;
  const auto memory = supervisor::kv_memory_of(packet);
  const Status status =
      memory && peer >= 0 ? pairs.attach(index, {rank, static_cast<int>(packet.number("ranks", -1)),
                                                 memory->file.get(), static_cast<std::size_t>(memory->blocks),
                                                 static_cast<std::size_t>(memory->block_bytes), memory->life,
                                                 memory->own_life})
                          : invalid("the supervisor describes it badly");
  if (status.ok()) {
    log.info("peer_memory", {kv("peer", peer), kv("rank", rank), kv("blocks", memory->blocks)});
  } else {
    log.warning("peer_memory_refused", {kv("peer", peer), kv("rank", rank), kv("why", status.message)});
    tell_unreadable(control, peer, status.message);
  }
}

Status serve(const supervisor::ChildArguments& arguments, Control& control, const Log& log,
             const config::Options& options) {
  const TimePoint start = Clock::now();
  auto hash = model::model_spec_hash(options);
  if (!hash.ok()) return hash.status();
  auto executor =
      model::make_executor(options, progress_to(control, log), place_of(arguments, options.parallel));
  if (!executor.ok()) return executor.status();
  const wire::Capacity capacity = (*executor)->capacity();
  log.info("loaded", {kv("device", (*executor)->device()), kv("weight_bytes", capacity.weight_bytes),
                      kv("kv_bytes", capacity.kv_bytes), kv("arena_bytes", capacity.arena_bytes),
                      kv("kv_blocks", capacity.kv_blocks), kv("media_tokens", capacity.media_tokens),
                      kv("max_model_len", capacity.max_model_len),
                      kv("seconds", std::chrono::duration<double>(Clock::now() - start).count())});
  if (const std::string note = (*executor)->load_note(); !note.empty())
    log.info("weights", {kv("note", note)});
  for (const std::string& way : (*executor)->slow_ways()) log.warning("slow", {kv("way", way)});
  auto link = ipc::LowerEnd::attach(arguments.step_fds.front(), arguments.cache_fds.front());
  if (!link.ok()) return link.status();
  const auto own_patches = patches_at(arguments.patches_fd);
  if (!own_patches.ok()) return own_patches.status();
  PatchRegions patches(*own_patches);
  // Fronts of an engine that takes them share the region of its relay.
  if (options.split.role == config::SplitRole::prefill && !options.takes_fronts())
    patches.set(supervisor::kDecodeFront, nullptr);
  if (Status status = attach_remote_peers(arguments, options.split, **executor); !status.ok()) return status;
  const WorkerIdentity identity{*hash, arguments.rank, random_id(),
                                std::chrono::seconds(options.process.start_timeout_s)};
  const auto giver = give_blocks(arguments, **executor, identity.memory);
  if (!giver.ok()) return giver.status();
  if (Status status = tell_memory(control, **executor, identity.memory); !status.ok()) return status;
  control.tell({{"event", "state"}, {"state", "ready"}});
  KvPairs pairs(**executor, pairs_setup(options.split, control, log));
  return run_worker(*link, **executor, identity, log, &patches, [&] {
    supervisor::Packet packet = control.receive(TimePoint{});
    if (packet.kind == supervisor::Packet::Kind::message) {
      obey(packet, patches, log);
      if (packet.text("do") == "kv_pair" && packet.attached)
        (*executor)->give_pair(OwnedFd(packet.attached.release()), identity.memory);
      obey(packet, pairs, control, log);
    }
    pairs.tick(Clock::now());
    return asked_to_end(packet);
  });
}

}  // namespace

int worker_main(const std::vector<std::string>& words) {
  const int code =
      run_child("worker", words, [](const auto& arguments, Control& control, const config::Options& options) {
        // The worker serves without a log when it cannot be opened.
        const int worker = place_of(arguments, options.parallel).worker();
        auto opened = Log::open("worker-" + std::to_string(worker), options.log);
        const Log log = opened.ok() ? *opened : Log();
        Status status = serve(arguments, control, log, options);
        if (!status.ok()) log.error("fatal", {kv("why", status.message)});
        return status;
      });
  if (code != 0) {
    // The GPU may hang, and what libraries do at a regular exit would wait for it.
    Log::flush(kLastWords);
    std::_Exit(code);
  }
  return code;
}

}  // namespace troupe
