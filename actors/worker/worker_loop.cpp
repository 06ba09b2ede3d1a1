#include "actors/worker/worker_loop.h"

#include <string>
#include <thread>
#include <utility>

#include "actors/worker/step_digest.h"
#include "base/clock.h"

namespace troupe {
namespace {

constexpr auto kIdleWait = std::chrono::milliseconds(200);
// While steps are pending: a device with a queue takes the next plan while one runs, so the loop must not
// wait for the rings or the device alone. Each poll is short; a round ends as soon as one step or record is
// ready.
constexpr auto kDevicePoll = std::chrono::microseconds(2);
constexpr auto kNextLook = std::chrono::milliseconds(5);  // at an executor that is not prepared yet
constexpr auto kRound = std::chrono::milliseconds(20);
constexpr auto kFullRingPatience = std::chrono::seconds(5);

}  // namespace

Status WorkerLoop::begin() {
  executor_.reset(link_.epoch());  // before the first plan, too: a rank has to be in its link's epoch
  pending_ = 0;
  encoding_.clear();
  greeted_ = false;
  prepare_until_ = Clock::now() + identity_.prepare_timeout;
  return greet();
}

Status WorkerLoop::unprepared() const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(identity_.prepare_timeout).count();
  return failure(Code::timeout,
                 "the ranks have not met within " + std::to_string(seconds) + " s (--start-timeout)");
}

Status WorkerLoop::greet() {
  const Result<bool> prepared = executor_.prepare();
  if (!prepared.ok()) return prepared.status();
  if (!*prepared) return Clock::now() < prepare_until_ ? Status() : unprepared();
  greeted_ = true;
  wire::RecordWriter<wire::Hello> hello;
  hello.begin(link_.epoch());
  const std::string device = executor_.device();
  const auto name = hello.array(std::span<const char>(device));
  auto& record = hello.record();
  record.rank = identity_.rank;
  record.spec_hash = identity_.spec_hash;
  record.memory = identity_.memory;
  record.capacity = executor_.capacity();
  record.device = name;
  if (Status status = send(ipc::Channel::step, hello.finish()); !status.ok()) return status;

  wire::RecordWriter<wire::Inventory> inventory;  // empty: the sequences were dropped
  inventory.begin(link_.epoch());
  inventory.record().old_epoch = std::exchange(old_epoch_, link_.epoch());
  log_.info("ready", {kv("epoch", link_.epoch()), kv("device", device)});
  link_.join();
  return send(ipc::Channel::cache, inventory.finish());
}

Status WorkerLoop::run_once() {
  if (!greeted_) {
    const ipc::Received got = link_.receive(Clock::now() + kNextLook);
    return got.kind == ipc::Received::Kind::timeout ? greet() : take(got);
  }
  for (const TimePoint end = Clock::now() + kRound;;) {
    // All records are submitted before anything runs: a plan may depend on a cache command.
    for (;;) {
      const bool idle = pending_ == 0 || executor_.waits_for_record();
      const ipc::Received got = link_.receive(idle ? Clock::now() + kIdleWait : TimePoint{});
      if (got.kind == ipc::Received::Kind::timeout) break;
      if (Status status = take(got); !status.ok()) return status;
    }
    if (pending_ == 0) return {};

    const TimePoint now = Clock::now();
    auto finished = executor_.poll(result_, now + kDevicePoll);
    if (!finished.ok()) return finished.status();
    if (*finished) return send_result();
    if (now > end) return {};
  }
}

Status WorkerLoop::send_result() {
  --pending_;
  auto* header = reinterpret_cast<wire::Header*>(result_.data());
  header->epoch = link_.epoch();
  if (header->kind == wire::RecordKind::step_result && identity_.rank > 0) return send_end();
  if (header->kind == wire::RecordKind::media_done) check_patches();
  const bool cache = header->kind == wire::RecordKind::cache_done;
  return send(cache ? ipc::Channel::cache : ipc::Channel::step, result_);
}

/// What was made of patches that have gone meanwhile must not be used.
void WorkerLoop::check_patches() {
  auto* done = reinterpret_cast<wire::MediaDone*>(result_.data());
  const auto ended = encoding_.extract({done->slot, done->item});
  if (ended.empty() || done->dropped != 0) return;
  if (!ended.mapped().region->holds(ended.mapped().place)) done->failed = 1;
}

Status WorkerLoop::send_end() {
  wire::RecordView view;
  if (!wire::RecordView::open(result_, view) || view.as<wire::StepResult>() == nullptr) {
    return failure(Code::internal, "the device's result is no sound record");
  }
  end_.begin(link_.epoch());
  end_.record().step = view.as<wire::StepResult>()->step;
  end_.record().digest = digest_of(view);
  return send(ipc::Channel::step, end_.finish());
}

Status WorkerLoop::take(const ipc::Received& got) {
  if (got.kind == ipc::Received::Kind::corrupt)
    return failure(Code::internal, "a ring from the engine is corrupt");
  if (got.kind == ipc::Received::Kind::epoch_changed) {
    log_.info("engine_replaced", {kv("epoch", link_.epoch()), kv("dropped", pending_)});
    return begin();
  }
  const auto* encode = got.view.as<wire::EncodeMedia>();
  Status status = encode != nullptr ? take(*encode) : executor_.submit(got.view);
  if (status.code == Code::internal) return status;
  if (!status.ok())
    return failure(Code::internal, "a record of the engine makes no sense: " + status.message);
  const wire::RecordKind kind = got.view.header().kind;
  if (kind == wire::RecordKind::step_plan || kind == wire::RecordKind::cache_command) ++pending_;
  return {};
}

Status WorkerLoop::take(const wire::EncodeMedia& command) {
  const PatchRegions::Region region = patches_ == nullptr ? nullptr : patches_->of(command.front);
  const auto found = region == nullptr ? std::nullopt : region->find(command.place);
  if (!found) return refuse(command);
  const Status status = executor_.encode(command, found->patches);
  if (!status.ok()) return region->holds(command.place) ? status : refuse(command);
  encoding_[{command.slot, command.item}] = {region, command.place};
  ++pending_;
  return {};
}

Status WorkerLoop::refuse(const wire::EncodeMedia& command) {
  executor_.skip_encoding(command);
  wire::RecordWriter<wire::MediaDone> done;
  done.begin(link_.epoch());
  done.record().slot = command.slot;
  done.record().item = command.item;
  done.record().failed = 1;
  // Mostly the request has ended meanwhile. The scheduler knows, and warns of what is still wanted.
  log_.debug("patches_gone", {kv("slot", command.slot.slot), kv("item", command.item)});
  done.record().started_ns = done.record().finished_ns = now_ns();
  return send(ipc::Channel::step, done.finish());
}

Status WorkerLoop::send(ipc::Channel channel, std::span<const std::byte> record) {
  const TimePoint deadline = Clock::now() + kFullRingPatience;
  while (!link_.try_send(channel, record)) {
    if (Clock::now() > deadline) return failure(Code::internal, "the engine has read nothing for 5 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

}  // namespace troupe
