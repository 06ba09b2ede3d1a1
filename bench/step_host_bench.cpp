// What the host does for a step of 256 sequences of 2,048 tokens each, from a result's bytes to the step
// after next in pinned memory: the engine's part and the worker's, on the pure classes of both, with the
// records that cross the rings. Actors, rings and the driver are left out (engine_bench has the first two).
//
//   commit   the engine reads the result, and what its hosts are told
//   plan     it writes the next plan's record
//   asks     KV blocks are asked for and granted
//   admit    the worker checks the plan
//   apply    the plan becomes a batch
//   pack     the batch becomes a piece of pinned memory
//   result   the worker writes the result's record
//
// A step of a large model lasts 10 ms and more, in which others use the caches: so once with caches as the
// step before left them, and once behind so many other bytes. "decode": all rows decode. "drafts": the worker
// drafts, and a row verifies up to two draft tokens. "forms": likewise, and every second sequence is held to
// a form. Medians of wall time on one thread.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "base/check.h"
#include "base/clock.h"
#include "bench/report.h"
#include "model/cuda/step_packer.h"
#include "model/plan_check.h"
#include "model/result_writer.h"

namespace troupe {
namespace {

constexpr int kSequences = 256, kContext = 2048, kWarmUp = 20, kSteps = 200;
constexpr int kMostTokens = 4096, kDrafts = 2;
constexpr std::int64_t kStepNs = 10'000'000;

enum class Rows { decode, drafts, forms };
enum Part { commit, plan, asks, admit, apply, pack, result, kParts };
constexpr std::array<const char*, kParts> kNames = {"commit", "plan", "asks",  "admit",
                                                    "apply",  "pack", "result"};
using Times = std::array<std::int64_t, kParts>;

wire::Capacity capacity(Rows rows) {
  wire::Capacity made;
  made.block_tokens = kernels::kBlockTokens;
  made.max_model_len = kMostTokens;
  made.kv_blocks = kSequences * kMostTokens / made.block_tokens;
  made.max_slots = kSequences;
  made.max_tokens_per_step = 8192;
  made.vocab_size = 103'424;
  if (rows == Rows::decode) return made;
  made.max_drafts = kDrafts;
  made.max_sampled = kSequences * (1 + kDrafts);
  if (rows == Rows::forms) made.max_proposed = kDrafts;
  return made;
}

model::DerivedLimits derived(const wire::Capacity& capacity) {
  if (capacity.max_drafts == 0) return {};
  return {.widths = {1, 1 + kDrafts}, .most_rows = capacity.max_sampled};
}

class Host {
 public:
  explicit Host(Rows rows) : rows_(rows), scheduler_(config::SchedulerOptions{}) {
    cache_.reset(1, capacity_.kv_blocks, capacity_.block_tokens);
    scheduler_.attach(1, capacity_, out_);
    piece_.resize(layout_.bytes / 8 + 1);
    for (std::uint64_t i = 0; i < kSequences; ++i) submit(i);
    send_plan(flights_[0]);
    send_plan(flights_[1]);
  }

  /// The oldest step ends, and another one is sent. False while it was no step of all sequences.
  bool step(Times& times) {
    Flight& flight = flights_[steps_++ % flights_.size()];
    const bool all = flight.batch.sequences.size() == kSequences && flight.decodes;
    const std::int64_t begin = now_ns();
    write_result(flight);
    times[result] = now_ns() - begin;
    times_ = {};
    timed(commit, [&] { TROUPE_CHECK(scheduler_.commit(result_, out_) == Committed::applied); });
    send_plan(flight);
    for (const Part part : {commit, plan, asks, admit, apply, pack})
      times[static_cast<std::size_t>(part)] = times_[static_cast<std::size_t>(part)];
    return all && flight.decodes;
  }

 private:
  struct Flight {
    std::uint64_t number = 0;
    bool decodes = false;
    model::StepBatch batch;
  };

  static inline void* const kNowhere = reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  static constexpr std::size_t kMuch = std::size_t{1} << 40;

  template <class Work>
  void timed(Part part, Work&& work) {
    const std::int64_t begin = now_ns();
    work();
    times_[static_cast<std::size_t>(part)] += now_ns() - begin;
  }

  void submit(std::uint64_t i) {
    Submit request;
    SequenceSpec& spec = request.sequences.emplace_back();
    spec.key = {1, i + 1};
    spec.prompt.resize(kContext);
    std::iota(spec.prompt.begin(), spec.prompt.end(), static_cast<TokenId>(i));
    spec.prompt_tokens = kContext;
    spec.max_output_tokens = kMostTokens - kContext;
    spec.stop_ids = {99'998, 99'999};
    spec.grammar = rows_ == Rows::forms ? i % 2 : 0;
    TROUPE_CHECK(scheduler_.submit(request).ok());
    exchange();
  }

  void exchange() {
    if (!scheduler_.take_asks(asks_)) return;
    cache_.answer(asks_, grants_);
    scheduler_.granted(grants_);
  }

  void send_plan(Flight& flight) {
    std::span<const std::byte> bytes;
    timed(plan, [&] {
      scheduler_.take_grammar(grammar_);
      bytes = scheduler_.plan(1);
      scheduler_.take_grammar(grammar_);
    });
    timed(asks, [&] { exchange(); });
    TROUPE_CHECK(!bytes.empty());
    record_.assign(bytes.begin(), bytes.end());  // the ring's part
    wire::RecordView view;
    TROUPE_CHECK(wire::RecordView::open(record_, view));
    const auto& step_plan = *view.as<wire::StepPlan>();
    flight.number = step_plan.step;
    timed(admit, [&] { TROUPE_CHECK(check_.admit(view, step_plan).ok()); });
    timed(apply, [&] { table_.apply(view, step_plan, flight.batch); });
    timed(pack, [&] {
      packer_.pack(view, step_plan, table_, flight.batch, std::as_writable_bytes(std::span(piece_)));
    });
    const auto decodes = [](const wire::PlanRow& row) { return (row.flags & wire::kSamples) != 0; };
    flight.decodes = std::ranges::all_of(view.array(step_plan.rows), decodes);
  }

  /// As CudaQueue does when the device has ended the step; each row yields from one token to all.
  void write_result(Flight& flight) {
    model::StepBatch& batch = flight.batch;
    for (std::size_t i = 0; i < batch.samples.size(); ++i)
      samples_[i].token = static_cast<TokenId>((steps_ + i) % 90'000);
    yields_.clear();
    for (const kernels::DerivedSequence& one : batch.derived) {
      const auto more = static_cast<std::int32_t>((steps_ + yields_.size()) % (1 + kDrafts));
      yields_.push_back({1 + std::min(more, one.drafts), static_cast<std::int16_t>(one.drafts), 0});
    }
    const auto samples = std::span<const kernels::SampleResult>(samples_).first(batch.samples.size());
    table_.resolve(batch, yields_, samples);
    table_.commit(batch, samples);
    clock_ns_ += kStepNs;
    writer_.step(flight.number, batch, samples, {}, {}, clock_ns_ - kStepNs, clock_ns_, result_);
    reinterpret_cast<wire::Header*>(result_.data())->epoch = 1;
  }

  const Rows rows_;
  const wire::Capacity capacity_ = capacity(rows_);
  // The engine.
  Scheduler scheduler_;
  CacheManager cache_;
  StepOutput out_;
  CacheAsks asks_;
  CacheGrants grants_;
  GrammarStep grammar_;
  // The worker.
  model::StepMemory memory_ = model::StepMemory::make(capacity_, {kNowhere, kMuch});
  kernels::PieceLayout layout_ = model::StepPacker::layout(capacity_);
  model::PlanCheck check_{capacity_};
  model::WorkerSequences table_{kSequences, {}, nullptr, derived(capacity_)};
  model::StepPacker packer_{memory_.sequences, layout_, kSequences};
  model::ResultWriter writer_;
  std::vector<std::uint64_t> piece_;
  std::vector<kernels::SampleResult> samples_ =
      std::vector<kernels::SampleResult>(static_cast<std::size_t>(model::most_samples(capacity_)));
  std::vector<kernels::Yield> yields_;

  std::array<Flight, 2> flights_;
  std::uint64_t steps_ = 0;
  std::int64_t clock_ns_ = 1;
  std::vector<std::byte> record_, result_;
  Times times_{};
};

double median_us(std::vector<std::int64_t>& ns, double q = 0.5) {
  std::sort(ns.begin(), ns.end());
  return 1e-3 * static_cast<double>(ns[static_cast<std::size_t>(q * static_cast<double>(ns.size() - 1))]);
}

void measure(bench::Report& report, Rows rows, const std::string& name, std::size_t other_bytes,
             double must_us) {
  Host host(rows);
  std::vector<std::uint64_t> others(other_bytes / sizeof(std::uint64_t), 1);
  std::array<std::vector<std::int64_t>, kParts> parts;
  std::vector<std::int64_t> engine, worker, all;
  std::uint64_t sum = 0, rounds = 0;
  for (int full = 0; full < kWarmUp + kSteps;) {
    sum = std::accumulate(others.begin(), others.end(), sum);
    ++rounds;
    Times times{};
    if (!host.step(times) || ++full <= kWarmUp) continue;
    for (std::size_t i = 0; i < kParts; ++i) parts[i].push_back(times[i]);
    engine.push_back(times[commit] + times[plan] + times[asks]);
    worker.push_back(times[admit] + times[apply] + times[pack] + times[result]);
    all.push_back(engine.back() + worker.back());
  }
  TROUPE_CHECK(sum == others.size() * rounds);
  const auto row = [&](const std::string& part, std::vector<std::int64_t>& ns, double q, double must) {
    report.row({"step_host." + name + "." + part, median_us(ns, q), "us", 0, must, bench::Better::lower});
  };
  for (std::size_t i = 0; i < kParts; ++i) row(kNames[i], parts[i], 0.5, 0);
  row("engine", engine, 0.5, 0);
  row("worker", worker, 0.5, 0);
  row("all", all, 0.5, must_us);
  row("all.p99", all, 0.99, 0);
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  using namespace troupe;
  bench::Report report(argc, argv);
  constexpr std::size_t kMb = std::size_t{1} << 20;
  measure(report, Rows::decode, "decode", 0, 90);
  measure(report, Rows::decode, "decode.behind_16_mb", 16 * kMb, 90);
  measure(report, Rows::decode, "decode.behind_256_mb", 256 * kMb, 0);
  measure(report, Rows::drafts, "drafts", 0, 0);
  measure(report, Rows::drafts, "drafts.behind_16_mb", 16 * kMb, 0);
  measure(report, Rows::forms, "forms", 0, 0);
  measure(report, Rows::forms, "forms.behind_16_mb", 16 * kMb, 0);
  return report.all_met() ? 0 : 1;
}
