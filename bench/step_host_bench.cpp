// What the host does for a GPU's step before the driver has it: the plan is checked, becomes a batch and is
// packed into a piece. 256 sequences that decode, 2,048 tokens each; CPU time of the thread. A step of a
// large model lasts 20 ms, in which others use the core's caches: so once with caches as the step before left
// them, and once behind so many other bytes.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/cpu_clock.h"
#include "bench/report.h"
#include "model/cuda/step_packer.h"
#include "model/plan_check.h"

namespace troupe {
namespace {

constexpr int kSequences = 256, kContext = 2048, kSteps = 200;
constexpr int kBlocksEach = 64;

wire::Capacity capacity() {
  wire::Capacity made;
  made.kv_blocks = kSequences * kBlocksEach;
  made.max_slots = kSequences;
  made.max_tokens_per_step = 8192;
  made.max_model_len = kBlocksEach * 64;
  made.vocab_size = 103'424;
  return made;
}

class Host {
 public:
  Host() : memory_(model::StepMemory::make(capacity(), {kNowhere, kMuch})) {
    piece_.resize(layout_.bytes / 8 + 1);
    std::vector<TokenId> prompt(kContext);
    std::iota(prompt.begin(), prompt.end(), 0);
    std::vector<BlockId> blocks(kBlocksEach);
    for (std::uint32_t s = 0; s < kSequences; ++s) {
      std::iota(blocks.begin(), blocks.end(), static_cast<BlockId>(s * kBlocksEach));
      start(SlotRef{s, 1}, prompt, blocks);
    }
  }

  /// Microseconds of one decode step.
  double step() {
    writer_.begin(1);
    std::vector<wire::PlanRow> rows;
    for (std::uint32_t s = 0; s < kSequences; ++s)
      rows.push_back({SlotRef{s, 1}, position_, 1, wire::kSamples, 0});
    ++position_;
    const auto span = writer_.array(rows);
    writer_.record().rows = span;
    return take();
  }

 private:
  static inline void* const kNowhere = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  static constexpr std::size_t kMuch = std::size_t{1} << 40;

  void start(SlotRef slot, const std::vector<TokenId>& prompt, const std::vector<BlockId>& blocks) {
    writer_.begin(1);
    wire::StartSequence s;
    s.slot = slot;
    s.prompt_tokens = s.known_tokens = kContext;
    const auto started = writer_.array(std::vector{s});
    const auto runs = writer_.array(std::vector{wire::TokenRun{slot, 0, 0, writer_.array(prompt)}});
    const auto block_runs = writer_.array(std::vector{wire::BlockRun{slot, 0, 0, writer_.array(blocks)}});
    const auto rows = writer_.array(std::vector{wire::PlanRow{slot, 0, kContext, wire::kSamples, 0}});
    wire::StepPlan& record = writer_.record();
    record.started = started;
    record.tokens = runs;
    record.blocks = block_runs;
    record.rows = rows;
    take();
  }

  double take() {
    writer_.record().step = ++steps_;
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(writer_.finish(), view));
    const auto& plan = *view.as<wire::StepPlan>();
    const double begin = bench::cpu_us();
    TROUPE_CHECK(check_.admit(view, plan).ok());
    table_.apply(view, plan, batch_);
    packer_.pack(view, plan, table_, batch_, std::as_writable_bytes(std::span(piece_)));
    return bench::cpu_us() - begin;
  }

  model::StepMemory memory_;
  kernels::PieceLayout layout_ = model::StepPacker::layout(capacity());
  model::PlanCheck check_{capacity()};
  model::WorkerSequences table_{kSequences};
  model::StepPacker packer_{memory_.sequences, layout_, kSequences};
  model::StepBatch batch_;
  std::vector<std::uint64_t> piece_;
  wire::RecordWriter<wire::StepPlan> writer_;
  std::uint64_t steps_ = 0;
  std::int32_t position_ = kContext;
};

void measure(bench::Report& report, const std::string& name, std::size_t other_bytes) {
  Host host;
  std::vector<std::uint64_t> others(other_bytes / sizeof(std::uint64_t), 1);
  std::vector<double> us;
  std::uint64_t sum = 0;
  for (int i = 0; i < kSteps; ++i) {
    sum = std::accumulate(others.begin(), others.end(), sum);
    us.push_back(host.step());
  }
  TROUPE_CHECK(sum == others.size() * kSteps);
  std::sort(us.begin(), us.end());
  report.row({"step_host.256." + name + ".p50", us[us.size() / 2], "us", 0, 0, bench::Better::lower});
  report.row({"step_host.256." + name + ".p99", us[us.size() * 99 / 100], "us", 0, 0, bench::Better::lower});
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  using namespace troupe;
  bench::Report report(argc, argv);
  measure(report, "warm", 0);
  measure(report, "behind_16_mb", std::size_t{16} << 20);
  measure(report, "behind_256_mb", std::size_t{256} << 20);
  return report.all_met() ? 0 : 1;
}
