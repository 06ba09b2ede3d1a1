#pragma once
// One engine on virtual time: the product's Scheduler and CacheManager, with the worker replaced by a model
// of its time.
//
// As in the product two plans are in flight, the next one made when a result comes back, and blocks are asked
// for one step ahead. Not modelled: the engine's own time between two steps (0.1 ms).
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "bench/scheduler_sim/step_cost.h"
#include "config/options.h"
#include "ipc/block_names.h"

namespace troupe::bench {

struct ReplayDevice {
  std::int32_t kv_blocks = 21'000;  ///< of 64 tokens: what 21B in BF16 leaves of 141 GB
  std::int32_t slots = 512;
  std::int32_t max_model_len = 131'072;
  StepCost cost;
  double speed = 1;  ///< a step takes 1/speed of what `cost` says
};

class SimulatedEngine {
 public:
  /// The token at a position of a sequence's text, prompt first: what the worker samples.
  using Text = std::function<TokenId(const RequestKey& sequence, std::int32_t position)>;

  struct Setup {
    config::SchedulerOptions scheduler;  ///< max_num_batched_tokens is required
    PrefixCaching caching{true, true, {1, 2}};
    ReplayDevice device;
    Text text;
    std::int32_t vocab_size = 0;  ///< ids of `text` are below
    /// Where the names of its cached blocks are kept, with the key of `caching`; null: nowhere.
    std::shared_ptr<ipc::BlockNames> names{};
    std::uint64_t memory = 0;  ///< the life of the worker's KV memory, with `names` not 0
  };

  explicit SimulatedEngine(Setup setup);

  /// As Scheduler::submit(). advance() lets it begin.
  Status submit(Submit& request) { return scheduler_.submit(request); }

  /// Makes the plans that can be made now, in seconds.
  void advance(double now_s);

  /// A step is in flight. It ends at ends_s().
  bool runs() const { return !steps_.empty(); }
  double ends_s() const { return steps_.front().ends_s; }

  /// Takes the result of the oldest step; advance() has to follow. Valid until the next call.
  const StepOutput& end_step();

  const Scheduler& scheduler() const { return scheduler_; }
  const CacheManager& cache() const { return cache_; }
  double busy_s() const { return busy_s_; }  ///< the device ran a step

 private:
  static constexpr std::uint32_t kEpoch = 1;
  struct Step {
    double ends_s = 0;
    std::vector<std::byte> result;
  };

  void exchange();
  void run_plan(std::span<const std::byte> bytes, double now_s);

  const Setup setup_;
  Scheduler scheduler_;
  CacheManager cache_;
  double device_free_s_ = 0;
  double busy_s_ = 0;
  std::deque<Step> steps_;        ///< in flight, the oldest first
  std::vector<RequestKey> keys_;  ///< of the sequences in the slots, as the worker knows them
  StepOutput output_;
  CacheAsks asks_;
  CacheGrants grants_;
  wire::RecordWriter<wire::StepResult> writer_;
  std::vector<wire::ResultRow> rows_;
  std::vector<TokenId> tokens_;
  std::vector<std::byte> spare_;  ///< memory of a result that was committed
};

}  // namespace troupe::bench
