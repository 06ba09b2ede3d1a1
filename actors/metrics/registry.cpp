#include "actors/metrics/registry.h"

#include <string_view>
#include <utility>

#include "actors/metrics/engine_totals.h"

namespace troupe::metrics {
namespace {

// What FastDeploy's page lists begins at .001, .01 and .3 and ends, for the first, at 1; its bounds are all
// among these.
constexpr double kTtft[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .02, .04, .06, .08,
                            .1,    .25,    .5,    .75,  1,     2.5,  5,   10,  30,  60,  120};
constexpr double kTpot[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .075, .1, .15,
                            .2,    .3,     .4,    .5,   .75,   1,    2.5, 5,    10,  30,   60};
constexpr double kLatency[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,  .1,  .2,
                               .3,    .5,     .8,    1,    1.5,   2,    2.5, 5,    10,   15,  20,
                               30,    40,     50,    60,   120,   240,  480, 960,  1920, 7680};
constexpr double kTokens[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 33792};
constexpr double kStep[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05,
                            .1,    .25,    .5,    1,    2.5,   5,    10,  30,   60};

/// Why a generation request was not served, one of kRejections; empty when the status is no rejection
/// (499: the client left).
std::string_view rejection(std::int32_t status) {
  if (status == 401 || status == 403) return "unauthorized";
  if (status == 413 || status == 431) return "too_large";
  if (status == 429) return "overloaded";
  if (status == 503) return "unavailable";
  return status >= 400 && status < 499 ? "invalid" : "";
}

/// By how much a count has risen that starts at 0 again with a new worker.
std::int64_t risen(std::int64_t now, std::int64_t before) { return now >= before ? now - before : now; }

}  // namespace

Registry::Registry(Constants constants)
    : constants_(std::move(constants)),
      ttft_(kTtft),
      tpot_(kTpot),
      gap_(kGapBounds),
      e2e_(kLatency),
      inference_(kLatency),
      queue_(kLatency),
      prefill_(kLatency),
      decode_(kLatency),
      request_prompt_(kTokens),
      request_generation_(kTokens),
      request_max_tokens_(kTokens),
      step_(kStep),
      prefill_step_(kStep) {
  engines_.resize(constants_.engines);
}

void Registry::add(const StepStats& step) {
  if (step.engine >= engines_.size()) engines_.resize(step.engine + 1);
  Engine& engine = engines_[step.engine];
  const CacheStatus before = std::exchange(engine.last, step).kv;  // its counts restart with the worker
  engine.prompt_tokens += static_cast<std::uint64_t>(step.prompt_tokens);
  engine.generated_tokens += static_cast<std::uint64_t>(step.generated_tokens);
  engine.cached_tokens += static_cast<std::uint64_t>(step.cached_tokens);
  last_ = {};
  for (const Engine& one : engines_) {
    last_.running += one.last.running;
    last_.waiting += one.last.waiting;
    add_to(last_.kv, one.last.kv);
  }
  prompt_tokens_ += static_cast<std::uint64_t>(step.prompt_tokens);
  generated_tokens_ += static_cast<std::uint64_t>(step.generated_tokens);
  preempted_ += static_cast<std::uint64_t>(step.preempted);
  admitted_ += static_cast<std::uint64_t>(step.admitted);
  admitted_hits_ += static_cast<std::uint64_t>(step.admitted_hits);
  admitted_tokens_ += static_cast<std::uint64_t>(step.admitted_tokens);
  cached_tokens_ += static_cast<std::uint64_t>(step.cached_tokens);
  swapped_tokens_ += static_cast<std::uint64_t>(step.swapped_tokens);
  encoded_ += static_cast<std::uint64_t>(step.encoded);
  encode_s_ += step.encode_s;
  encodings_found_ += static_cast<std::uint64_t>(step.encodings_found);
  drafts_ += step.drafts;
  const SwapStatus& swap = step.kv.swap;
  evicted_ += static_cast<std::uint64_t>(risen(step.kv.evicted, before.evicted));
  swap_total_.out += risen(swap.out, before.swap.out);
  swap_total_.in += risen(swap.in, before.swap.in);
  swap_total_.evicted += risen(swap.evicted, before.swap.evicted);
  swap_total_.failed += risen(swap.failed, before.swap.failed);
  swap_total_.declined += risen(swap.declined, before.swap.declined);
  peers_total_.in += risen(step.kv.peers.in, before.peers.in);
  peers_total_.failed += risen(step.kv.peers.failed, before.peers.failed);
  if (step.step_s > 0) {
    ++steps_;
    step_.observe(step.step_s);
  }
  if (step.step_s > 0 && step.predicted_s > 0) {
    prefill_step_.observe(step.step_s);
    predicted_s_ += step.predicted_s;
  }
}

void Registry::add(const RequestStats& request) {
  ++requests_;
  handed_over_ += request.handed_over ? 1 : 0;
  given_back_ += request.given_back ? 1 : 0;
  for (std::size_t i = 0; i < kEndings; ++i) endings_[i] += static_cast<std::uint64_t>(request.endings[i]);
  gap_.add(request.gaps.counts, request.gaps.sum_s);
  if (!request.ok) return;
  ++successes_;
  if (request.ttft_s <= 0) return;  // tokenize or detokenize: the model did not run
  last_ttft_s_ = request.ttft_s;
  last_e2e_s_ = request.e2e_s;
  ttft_.observe(request.ttft_s);
  e2e_.observe(request.e2e_s);
  queue_.observe(request.queue_s);
  prefill_.observe(request.prefill_s);
  decode_.observe(request.decode_s);
  inference_.observe(request.prefill_s + request.decode_s);
  if (request.output_tokens > 1) tpot_.observe(request.decode_s / (request.output_tokens - 1));
  request_prompt_.observe(request.prompt_tokens);
  request_generation_.observe(request.output_tokens);
  request_max_tokens_.observe(request.max_tokens);
}

void Registry::add(const HttpStats& answer) {
  ++http_[{answer.path, answer.status}];
  const std::string_view why = rejection(answer.status);
  if (answer.generates && !why.empty()) ++rejected_[std::string(why)];
}

void Registry::add(const DoorStats& door) {
  turned_away_ += static_cast<std::uint64_t>(door.turned_away);
  failed_handshakes_ += static_cast<std::uint64_t>(door.failed_handshakes);
  faults_ += static_cast<std::uint64_t>(door.faults);
}

}  // namespace troupe::metrics
