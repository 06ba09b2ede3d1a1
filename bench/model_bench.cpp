// The 0.3B shape with dummy weights in bf16 on the CPU, through the executor: one sequence decoding, beside
// what the memory's bandwidth allows, and a prompt of 512 tokens, beside what the arithmetic allows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/report.h"
#include "config/options.h"
#include "gpu/ceilings.h"
#include "ipc/wire.h"
#include "kernels/best_isa.h"
#include "model/checkpoint/spec.h"
#include "model/make_executor.h"
#include "model/roofline.h"

namespace {

using namespace troupe;

constexpr int kPrompt = 512;
constexpr int kDecodeFrom = 16;  // tokens of context
// Figures and bounds are taken in turns and the best of each is kept: a neighbour on the same cores then
// spoils a turn of either, not the comparison.
constexpr int kTurns = 4;
constexpr int kPrefills = 2;  // of one turn
constexpr int kWindows = 10;  // of one turn
constexpr int kWindow = 4;    // decode steps timed together
constexpr int kPositions = 2048;
constexpr double kDecodeMust = 0.7;
constexpr double kPrefillMust = 0.4;

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message.c_str());
  std::exit(1);
}

// The engine's part for a single sequence in slot 0.
class Feed {
 public:
  explicit Feed(Executor& executor) : executor_(executor) {}

  // A new sequence whose prompt runs in one step.
  void prefill(int tokens) {
    std::vector<TokenId> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(3 + i * 37 % 1000);
    std::vector<BlockId> table;
    for (std::int32_t i = 0; i < kPositions / 64; ++i) table.push_back(i);
    writer_.begin(1);
    const SlotRef next{0, slot_.generation + 1};
    wire::StartSequence start;
    start.slot = next;
    start.prompt_tokens = start.known_tokens = tokens;
    start.sampling.temperature = 0;
    const auto id_span = writer_.array(ids);
    const auto block_span = writer_.array(table);
    const auto finished = writer_.array(std::vector<SlotRef>{slot_});
    const auto started = writer_.array(std::vector<wire::StartSequence>{start});
    const auto runs = writer_.array(std::vector<wire::TokenRun>{{next, 0, 0, id_span}});
    const auto block_runs = writer_.array(std::vector<wire::BlockRun>{{next, 0, 0, block_span}});
    writer_.record().finished = finished;
    writer_.record().started = started;
    writer_.record().tokens = runs;
    writer_.record().blocks = block_runs;
    slot_ = next;
    position_ = 0;
    submit(tokens);
  }

  void decode() {
    writer_.begin(1);
    submit(1);
  }

  void poll() {
    const Result<bool> got = executor_.poll(out_, Clock::now());
    require(got.status());
  }

 private:
  void submit(int tokens) {
    const auto rows =
        writer_.array(std::vector<wire::PlanRow>{{slot_, position_, tokens, wire::kSamples, 0}});
    writer_.record().rows = rows;
    writer_.record().step = ++step_;
    position_ += tokens;
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(writer_.finish(), view));
    require(executor_.submit(view));
  }

  Executor& executor_;
  wire::RecordWriter<wire::StepPlan> writer_;
  std::vector<std::byte> out_;
  SlotRef slot_{0, 0};
  std::int32_t position_ = 0;
  std::uint64_t step_ = 0;
};

double seconds_since(std::int64_t from_ns) { return static_cast<double>(now_ns() - from_ns) * 1e-9; }

void measure(Cpu& device, model::Ceilings& best) {
  best.bytes_per_s = std::max(best.bytes_per_s, read_bandwidth(device));
  best.flops_per_s = std::max(best.flops_per_s, dot_peak(device));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Report report(argc, argv);
  config::Options options;
  options.device.device = config::Device::cpu;
  options.model.load_choices = config::LoadChoice::dummy;
  options.model.dtype = config::DTypeOption::bfloat16;
  options.model.directory = TROUPE_BENCH_MODELS "/ERNIE-4.5-0.3B";
  options.scheduler.max_model_len = kPositions;
  options.scheduler.max_num_seqs = 1;
  options.scheduler.max_num_batched_tokens = kPrompt;
  const Result<model::ModelSpec> spec = model::read_spec(options.model.directory);
  require(spec.status());

  // Before the executor, which pins this thread: a device made after that would see a single core.
  Cpu device({.pin = false, .isa = kernels::best_isa().isa});
  const std::int64_t load_ns = now_ns();
  Result<std::unique_ptr<Executor>> executor = model::make_executor(options);
  require(executor.status());
  report.row({.name = "model.0.3b.dummy_load",
              .value = seconds_since(load_ns),
              .unit = "s",
              .better = bench::Better::lower});

  Feed feed(**executor);
  model::Ceilings ceilings;
  double prefill_s = 1e9, decode_s = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    measure(device, ceilings);
    for (int i = 0; i < kPrefills; ++i) {
      const std::int64_t from = now_ns();
      feed.prefill(kPrompt);
      feed.poll();
      prefill_s = std::min(prefill_s, seconds_since(from));
    }
    feed.prefill(kDecodeFrom);
    feed.decode();
    feed.poll();
    for (int window = 0; window < kWindows; ++window) {
      const std::int64_t from = now_ns();
      for (int i = 0; i < kWindow; ++i) {
        feed.decode();  // the plan for the next step leaves before this one has run
        feed.poll();
      }
      decode_s = std::min(decode_s, seconds_since(from) / kWindow);
    }
    feed.poll();
  }

  const double decode_bound =
      1 / model::bound_s(model::decode_work(*spec, DType::bf16, 1, kDecodeFrom), ceilings);
  const double prefill_bound =
      kPrompt / model::bound_s(model::prefill_work(*spec, DType::bf16, kPrompt), ceilings);
  report.row({.name = "model.0.3b.decode.batch1",
              .value = 1 / decode_s,
              .unit = "tok/s",
              .bound = decode_bound,
              .must = kDecodeMust * decode_bound});
  report.row({.name = "model.0.3b.prefill.512",
              .value = kPrompt / prefill_s,
              .unit = "tok/s",
              .bound = prefill_bound,
              .must = kPrefillMust * prefill_bound});
  return 0;
}
