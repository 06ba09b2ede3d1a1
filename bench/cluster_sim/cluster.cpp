#include "bench/cluster_sim/cluster.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <utility>

#include "base/check.h"

namespace troupe::bench {
namespace {

constexpr std::uint32_t kNowhere = UINT32_MAX;

enum class What { step_ends, dies, is_missed, is_given_up, comes_back };

struct ClusterEvent {
  double at_s = 0;
  std::uint64_t order = 0;  ///< of equal times the earlier made one is first
  What what = What::step_ends;
  std::uint32_t engine = 0;
  std::uint32_t life = 0;  ///< of the engine that is meant
  bool operator>(const ClusterEvent& o) const { return at_s != o.at_s ? at_s > o.at_s : order > o.order; }
};

struct ClusterEngine {
  std::unique_ptr<SimulatedEngine> runs;  ///< null: dead
  std::shared_ptr<ipc::BlockNames> names;
  std::uint32_t life = 1;  ///< which one `runs` is, or the next
  bool awaited = false;    ///< the end of its oldest step is among the events
};

struct ClusterRequest {
  std::uint32_t engine = kNowhere;
  std::uint32_t life = 0;  ///< of the engine
  std::uint32_t attempt = 0;
  std::int32_t output_tokens = 0;
  bool placed = false;  ///< the balancer counts it
  double first_s = -1;
  double ended_s = -1;
};

double percentile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, at);
  return *at;
}

class ClusterLoop {
 public:
  ClusterLoop(const ClusterTrace& trace, const ClusterDevice& device, Balancing balancing)
      : trace_(trace), device_(device), engines_(trace.load.engines), requests_(trace.arrivals.size()) {
    TROUPE_CHECK(trace.load.restart_s > kSilence_s + kNextProcess_s);
    BalancerParts parts;
    parts.engines = trace.load.engines;
    parts.requests = static_cast<std::uint32_t>(trace.arrivals.size());
    parts.answer_tokens = trace.load.answer_tokens;
    parts.now = [this] {
      return TimePoint(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * (now_s_ + 1))));
    };
    for (ClusterEngine& engine : engines_) {
      const auto file =
          ipc::BlockNames::create(static_cast<std::uint64_t>(device.device.kv_blocks), kNamesKey);
      TROUPE_CHECK(file.ok());
      auto written = ipc::BlockNames::attach(file->get());
      auto read = ipc::BlockNames::attach(file->get(), ipc::Access::read);
      TROUPE_CHECK(written.ok() && read.ok());
      engine.names = std::make_shared<ipc::BlockNames>(*std::move(written));
      parts.names.push_back(std::make_shared<ipc::BlockNames>(*std::move(read)));
    }
    for (std::uint32_t i = 0; i < engines_.size(); ++i) {
      up_.push_back(i);
      start(i);
    }
    balancer_ = make_balancer(balancing, std::move(parts));
    for (const ClusterDeath& death : trace.deaths) put(death.at_s, What::dies, death.engine, 0);
  }

  ClusterResult run(const ClusterGoal& goal) {
    std::uint32_t next = 0;
    for (;;) {
      const bool arrival = next < trace_.arrivals.size() &&
                           (events_.empty() || trace_.arrivals[next].at_s < events_.top().at_s);
      if (!arrival && (events_.empty() || events_.top().at_s > trace_.end_s)) break;
      if (arrival) {
        now_s_ = trace_.arrivals[next].at_s;
        give(next++);
      } else {
        const ClusterEvent event = events_.top();
        events_.pop();
        now_s_ = event.at_s;
        handle(event);
      }
    }
    for (std::uint32_t i = 0; i < engines_.size(); ++i) count(engines_[i]);
    return judge(goal);
  }

 private:
  void put(double at_s, What what, std::uint32_t engine, std::uint32_t life) {
    events_.push({at_s, events_made_++, what, engine, life});
  }

  void start(std::uint32_t index) {
    ClusterEngine& engine = engines_[index];
    SimulatedEngine::Setup setup{
        device_.scheduler, {true, true, {kNamesKey.low, kNamesKey.high}}, device_.device, {}};
    setup.device.speed = trace_.slow[index] ? trace_.load.slow_speed : 1;
    setup.text = [this](const RequestKey& key, std::int32_t position) {
      return trace_.token(static_cast<std::uint32_t>(key.lo - 1), position);
    };
    setup.vocab_size = 1 << 20;
    setup.names = engine.names;
    setup.memory = ++memories_;
    engine.runs = std::make_unique<SimulatedEngine>(std::move(setup));
    lived_s_ -= now_s_;
  }

  /// What the engine has done is added to the totals.
  void count(const ClusterEngine& engine) {
    if (engine.runs == nullptr) return;
    const SchedulerTotals& totals = engine.runs->scheduler().totals();
    result_.preempted += totals.preempted;
    prompt_tokens_ += static_cast<double>(totals.prompt_tokens);
    cached_tokens_ += static_cast<double>(totals.cached_tokens);
    busy_s_ += engine.runs->busy_s();
    lived_s_ += now_s_;
  }

  void handle(const ClusterEvent& event) {
    ClusterEngine& engine = engines_[event.engine];
    switch (event.what) {
      case What::step_ends:
        if (engine.runs == nullptr || engine.life != event.life) return;
        engine.awaited = false;
        take(event.engine, engine.runs->end_step());
        return advance(event.engine);
      case What::dies:
        if (engine.runs == nullptr) return;
        count(engine);
        engine.runs.reset();
        engine.awaited = false;
        put(now_s_ + kSilence_s, What::is_missed, event.engine, engine.life);
        put(now_s_ + kSilence_s + kNextProcess_s, What::is_given_up, event.engine, engine.life);
        put(now_s_ + trace_.load.restart_s, What::comes_back, event.engine, ++engine.life);
        return;
      case What::is_missed:
        std::erase(up_, event.engine);
        balancer_->serves(event.engine, false);
        return;
      case What::is_given_up:
        for (std::uint32_t i = 0; i < requests_.size(); ++i) {
          ClusterRequest& request = requests_[i];
          if (request.engine != event.engine || request.life != event.life || request.ended_s >= 0) continue;
          leave(i);
          ++request.attempt;
          ++result_.moved;
          give(i);
        }
        return;
      case What::comes_back:
        start(event.engine);
        up_.insert(std::ranges::lower_bound(up_, event.engine), event.engine);
        balancer_->serves(event.engine, true);
        for (const std::uint32_t request : std::exchange(homeless_, {})) give(request);
    }
  }

  void leave(std::uint32_t index) {
    ClusterRequest& request = requests_[index];
    request.engine = kNowhere;
    if (std::exchange(request.placed, false)) balancer_->end(index);
  }

  /// Gives the request to an engine, or to no one when all refuse.
  void give(std::uint32_t index) {
    ClusterRequest& request = requests_[index];
    const std::vector<TokenId> prompt = trace_.prompt(index);
    std::vector<std::uint32_t> left;
    std::span<const std::uint32_t> candidates = up_;
    if (candidates.empty()) return homeless_.push_back(index);
    while (!candidates.empty()) {
      const std::uint32_t chosen = balancer_->choose(index, prompt, candidates);
      request.placed = true;
      request.engine = chosen;
      request.life = engines_[chosen].life;
      SimulatedEngine* engine = engines_[chosen].runs.get();
      if (engine == nullptr) {
        // It is lost there until the front misses the engine: the life that has ended.
        --request.life;
        return;
      }
      Submit submit = submission(index, prompt);
      if (engine->submit(submit).ok()) return advance(chosen);
      leave(index);
      if (left.empty()) left = up_;
      std::erase(left, chosen);
      candidates = left;
    }
    ++result_.refused;
  }

  Submit submission(std::uint32_t index, const std::vector<TokenId>& prompt) const {
    const ClusterRequest& request = requests_[index];
    Submit submit;
    SequenceSpec& spec = submit.sequences.emplace_back();
    spec.key = {1, std::uint64_t{index} + 1};
    spec.prompt = prompt;
    spec.prompt_tokens = trace_.load.prompt_tokens();
    spec.max_output_tokens = trace_.load.answer_tokens;
    for (std::int32_t i = 0; i < request.output_tokens; ++i)
      spec.output.push_back(trace_.token(index, spec.prompt_tokens + i));
    submit.arrived_ns = static_cast<std::int64_t>(1e9 * trace_.arrivals[index].at_s);
    submit.attempt = request.attempt;
    return submit;
  }

  void advance(std::uint32_t index) {
    ClusterEngine& engine = engines_[index];
    engine.runs->advance(now_s_);
    if (engine.awaited || !engine.runs->runs()) return;
    engine.awaited = true;
    put(engine.runs->ends_s(), What::step_ends, index, engine.life);
  }

  void take(std::uint32_t engine, const StepOutput& output) {
    for (const HostTokens& host : output.hosts) {
      for (const SequenceTokens& tokens : host.step.sequences) {
        const auto index = static_cast<std::uint32_t>(tokens.key.lo - 1);
        ClusterRequest& request = requests_[index];
        TROUPE_CHECK(request.engine == engine && request.attempt == tokens.attempt &&
                     request.output_tokens == tokens.position);
        if (request.first_s < 0 && tokens.tokens > 0) request.first_s = now_s_;
        request.output_tokens += tokens.tokens;
        if (tokens.finish == Finish::none) continue;
        TROUPE_CHECK(tokens.finish == Finish::length);
        request.ended_s = now_s_;
        leave(index);
      }
    }
  }

  ClusterResult judge(const ClusterGoal& goal) {
    std::vector<double> ttft, tpot;
    std::uint64_t good = 0;
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
      const double at_s = trace_.arrivals[i].at_s;
      if (at_s < trace_.load.warm_up_s || at_s >= trace_.load.warm_up_s + trace_.load.measured_s) continue;
      ++result_.requests;
      const ClusterRequest& request = requests_[i];
      if (request.first_s < 0) {
        ++result_.unanswered;
        ttft.push_back(trace_.end_s - at_s);
        continue;
      }
      ttft.push_back(request.first_s - at_s);
      if (request.ended_s < 0) continue;
      tpot.push_back((request.ended_s - request.first_s) / std::max(1, request.output_tokens - 1));
      if (ttft.back() <= goal.ttft_s && tpot.back() <= goal.tpot_s) ++good;
    }
    result_.goodput = static_cast<double>(good) / trace_.load.measured_s;
    result_.good_share =
        static_cast<double>(good) / static_cast<double>(std::max<std::uint64_t>(1, result_.requests));
    result_.ttft_p50_s = percentile(ttft, 0.5);
    result_.ttft_p99_s = percentile(ttft, 0.99);
    result_.tpot_p50_s = percentile(tpot, 0.5);
    result_.tpot_p99_s = percentile(tpot, 0.99);
    result_.hit_rate = prompt_tokens_ > 0 ? cached_tokens_ / prompt_tokens_ : 0;
    result_.busy = lived_s_ > 0 ? busy_s_ / lived_s_ : 0;
    return result_;
  }

  const ClusterTrace& trace_;
  const ClusterDevice& device_;
  std::vector<ClusterEngine> engines_;
  std::vector<ClusterRequest> requests_;
  std::unique_ptr<Balancer> balancer_;
  std::vector<std::uint32_t> up_;        ///< the engines that the front takes to serve, in their order
  std::vector<std::uint32_t> homeless_;  ///< requests that came when there was none
  double now_s_ = 0;
  std::priority_queue<ClusterEvent, std::vector<ClusterEvent>, std::greater<>> events_;
  std::uint64_t events_made_ = 0;
  std::uint64_t memories_ = 0;
  ClusterResult result_;
  double prompt_tokens_ = 0, cached_tokens_ = 0;
  double busy_s_ = 0, lived_s_ = 0;
};

}  // namespace

ClusterDevice cluster_device() {
  ClusterDevice out;
  out.scheduler.max_num_batched_tokens = 8192;
  out.scheduler.max_prefill_step_ms = config::default_prefill_step_ms(config::Device::cuda);
  out.device.kv_blocks = 2000;
  return out;
}

ClusterResult simulate(const ClusterTrace& trace, const ClusterGoal& goal, const ClusterDevice& device,
                       Balancing balancing) {
  return ClusterLoop(trace, device, balancing).run(goal);
}

}  // namespace troupe::bench
