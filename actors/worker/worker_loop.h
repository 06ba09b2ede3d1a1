#pragma once
// The worker process between its rings and its Executor. No actor: one thread, one loop.
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "actors/worker/patch_regions.h"
#include "base/log.h"
#include "base/status.h"
#include "ipc/link.h"
#include "ipc/wire.h"
#include "model/executor.h"

namespace troupe {

struct WorkerIdentity {
  std::uint64_t spec_hash = 0;
  std::int32_t rank = 0;
  std::uint64_t memory = 0;  ///< random, drawn once for the executor: its KV memory lives as long
  Duration prepare_timeout = std::chrono::minutes(30);  ///< of Executor::prepare(), in each epoch
};

/// Serves plans until `stop` returns true; it is called at least five times a second. When the engine is
/// replaced the sequences are dropped and the weights stay. A malformed record, a full result ring, a device
/// error or ranks that do not meet in time end the loop with a Status; the process must then end. `patches`:
/// of images and videos, which `stop` may change; null: there are none, and every EncodeMedia fails.
template <class Stop>
Status run_worker(ipc::LowerEnd& link, Executor& executor, const WorkerIdentity& identity, const Log& log,
                  const PatchRegions* patches, Stop&& stop);

/// The body of run_worker()'s loop; not a template, so that it is compiled once.
class WorkerLoop {
 public:
  WorkerLoop(ipc::LowerEnd& link, Executor& executor, const WorkerIdentity& identity, const Log& log,
             const PatchRegions* patches = nullptr)
      : link_(link), executor_(executor), identity_(identity), log_(log), patches_(patches) {
    executor_.count_progress(link_.heartbeat());
  }

  /// Forgets what was in flight. First, and again after each epoch change. The engine is told that this
  /// worker is ready as soon as the executor is, by this call or a later one of run_once().
  Status begin();

  /// Submits records from the engine until a pending one has finished, and sends its result. Sleeps for at
  /// most 200 ms when nothing is pending, or only a step that waits for its masks; otherwise polls the rings
  /// and the device for at most 20 ms.
  Status run_once();

 private:
  struct Patches {
    PatchRegions::Region region;
    wire::PatchPlace place;
  };

  Status greet();
  Status unprepared() const;
  Status take(const ipc::Received& got);
  Status take(const wire::EncodeMedia& command);
  Status refuse(const wire::EncodeMedia& command);
  void check_patches();
  Status send_result();
  Status send_end();
  Status send(ipc::Channel channel, std::span<const std::byte> record);

  ipc::LowerEnd& link_;
  Executor& executor_;
  WorkerIdentity identity_;
  const Log& log_;
  const PatchRegions* const patches_;
  std::uint32_t old_epoch_ = 0;  ///< of the last greeting
  bool greeted_ = false;         ///< in this epoch
  TimePoint prepare_until_{};    ///< likewise
  int pending_ = 0;              ///< records submitted that a result will answer
  std::vector<std::byte> result_;
  wire::RecordWriter<wire::StepEnd> end_;                         ///< of a rank above 0
  std::map<std::pair<SlotRef, std::int32_t>, Patches> encoding_;  ///< of the items that are encoded
};

template <class Stop>
Status run_worker(ipc::LowerEnd& link, Executor& executor, const WorkerIdentity& identity, const Log& log,
                  const PatchRegions* patches, Stop&& stop) {
  WorkerLoop loop(link, executor, identity, log, patches);
  Status status = loop.begin();
  while (status.ok() && !stop()) status = loop.run_once();
  return status;
}

}  // namespace troupe
