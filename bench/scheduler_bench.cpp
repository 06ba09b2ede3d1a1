// The engine's critical path per step on the pure classes: a StepResult's bytes are committed, blocks are
// asked for and granted, and the next plan's bytes are written. 256 or 1,024 running sequences of mixed
// lengths that end and are replaced all the time, 1,000 more that wait, two plans in flight, prefix cache on
// without a single hit; CPU time of the thread.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "actors/cache/cache_manager.h"
#include "actors/scheduler/scheduler.h"
#include "bench/cpu_clock.h"
#include "bench/report.h"

namespace troupe {
namespace {

constexpr std::int32_t kWaiting = 1000;
constexpr int kSteps = 8'000;
constexpr int kWarmUp = 1'000;

/// Answers each plan with one token per sampling row.
std::vector<std::byte> echo(std::span<const std::byte> bytes, std::mt19937& random) {
  wire::RecordView view;
  if (!wire::RecordView::open(bytes, view)) return {};
  const wire::StepPlan& plan = *view.as<wire::StepPlan>();
  std::vector<wire::ResultRow> rows;
  std::vector<TokenId> tokens;
  for (const wire::PlanRow& row : view.array(plan.rows)) {
    if ((row.flags & wire::kSamples) == 0) continue;
    rows.push_back({row.slot, static_cast<std::int32_t>(tokens.size()), 1, wire::RowError::none, 0});
    tokens.push_back(static_cast<TokenId>(random() % 99'000));
  }
  wire::RecordWriter<wire::StepResult> writer;
  writer.begin(plan.header.epoch);
  const auto row_span = writer.array(rows);
  const auto token_span = writer.array(tokens);
  writer.record().step = plan.step;
  writer.record().rows = row_span;
  writer.record().tokens = token_span;
  const std::span<const std::byte> record = writer.finish();
  return {record.begin(), record.end()};
}

class Bench {
 public:
  explicit Bench(std::int32_t running) : running_(running), scheduler_(options()) {
    wire::Capacity capacity;
    capacity.kv_blocks = 32'768;
    capacity.max_slots = running_;
    capacity.max_tokens_per_step = 8192;
    capacity.max_model_len = 131'072;
    capacity.vocab_size = 100'000;
    cache_.reset(1, capacity.kv_blocks, capacity.block_tokens);
    scheduler_.attach(1, capacity, out_);
  }

  void run() {
    while (static_cast<int>(path_us_.size()) < kSteps) {
      fill();
      while (results_.size() < 2) {
        const std::span<const std::byte> more = scheduler_.plan(1);
        if (more.empty()) break;
        results_.push_back(echo(more, random_));
      }
      if (results_.empty()) {
        exchange();
        continue;
      }
      const double begin = bench::cpu_us();
      scheduler_.commit(results_.front(), out_);
      const std::span<const std::byte> plan = scheduler_.plan(1);
      exchange();
      const double end = bench::cpu_us();
      bytes_ = results_.front().size() + plan.size();
      results_.pop_front();
      if (!plan.empty()) results_.push_back(echo(plan, random_));
      if (scheduler_.running() < running_ * 9 / 10) continue;  // still filling up
      if (++warm_ > kWarmUp) path_us_.push_back(end - begin);
    }
    std::sort(path_us_.begin(), path_us_.end());
  }

  double quantile(double q) const {
    return path_us_[static_cast<std::size_t>(q * static_cast<double>(path_us_.size() - 1))];
  }

  /// What merely copying the same result and plan costs.
  double copy_us() const {
    std::vector<std::byte> from(bytes_, std::byte{1}), to(bytes_);
    double best = 1e9;
    for (int i = 0; i < 200; ++i) {
      const double begin = bench::cpu_us();
      for (int k = 0; k < 100; ++k) {
        from[static_cast<std::size_t>(k)] = std::byte(i);
        std::memcpy(to.data(), from.data(), bytes_);
        asm volatile("" ::"r"(to.data()) : "memory");
      }
      best = std::min(best, (bench::cpu_us() - begin) / 100);
    }
    return best;
  }

 private:
  static config::SchedulerOptions options() {
    config::SchedulerOptions options;
    options.max_queued_requests = 4 * kWaiting;
    return options;
  }

  void fill() {
    while (scheduler_.running() + scheduler_.waiting() < running_ + kWaiting) {
      Submit request;
      SequenceSpec& spec = request.sequences.emplace_back();
      spec.key = {1, ++keys_};
      spec.host = static_cast<std::uint32_t>(keys_ % 2);
      spec.prompt.assign(64 + random_() % 512, static_cast<TokenId>(keys_ % 90'000));
      spec.prompt_tokens = static_cast<std::int32_t>(spec.prompt.size());
      spec.max_output_tokens = static_cast<std::int32_t>(64 + random_() % 1024);
      spec.stop_ids = {99'998, 99'999};
      if (!scheduler_.submit(request).ok()) return;
      exchange();
    }
  }

  /// The cache manager's part: a message there and one back.
  void exchange() {
    if (!scheduler_.take_asks(asks_)) return;
    cache_.answer(asks_, grants_);
    scheduler_.granted(grants_);
  }

  const std::int32_t running_;
  Scheduler scheduler_;
  CacheManager cache_;
  StepOutput out_;
  CacheAsks asks_;
  CacheGrants grants_;
  std::deque<std::vector<std::byte>> results_;
  std::vector<double> path_us_;
  std::mt19937 random_{1};
  std::uint64_t keys_ = 0;
  std::size_t bytes_ = 0;
  int warm_ = 0;
};

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  troupe::bench::Report report(argc, argv);
  using troupe::bench::Better;
  for (const std::int32_t running : {256, 1024}) {
    troupe::Bench bench(running);
    bench.run();
    const double bound = bench.copy_us();
    const std::string name = "scheduler.step_" + std::to_string(running);
    report.row(
        {name + ".p50", bench.quantile(0.5), "us", bound, running == 256 ? 60.0 : 200.0, Better::lower});
    report.row(
        {name + ".p99", bench.quantile(0.99), "us", bound, running == 256 ? 300.0 : 1000.0, Better::lower});
  }
  return report.all_met() ? 0 : 1;
}
