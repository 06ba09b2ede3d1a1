#include "actors/metrics/registry.h"

namespace troupe::metrics {
namespace {

constexpr double kTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1};
constexpr double kTpot[] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1};
constexpr double kLatency[] = {.3, .5, .8, 1,  1.5, 2,  2.5, 5,   10,  15,  20,
                               30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,   2,   5,    10,   20,   50,    100,   200,
                              500, 1000, 2000, 5000, 10000, 20000, 33792};
constexpr double kStep[] = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5};

/// By how much a count has risen that starts at 0 again with a new worker.
std::int64_t risen(std::int64_t now, std::int64_t before) { return now >= before ? now - before : now; }

}  // namespace

Registry::Registry(Constants constants)
    : constants_(std::move(constants)),
      ttft_(kTtft), tpot_(kTpot), e2e_(kLatency), inference_(kLatency), queue_(kLatency),
      prefill_(kLatency), decode_(kLatency),
      request_prompt_(kTokens), request_generation_(kTokens), request_max_tokens_(kTokens),
      step_(kStep) {}

void Registry::add(const StepStats& step) {
  last_ = step;
  prompt_tokens_ += static_cast<std::uint64_t>(step.prompt_tokens);
  generated_tokens_ += static_cast<std::uint64_t>(step.generated_tokens);
  preempted_ += static_cast<std::uint64_t>(step.preempted);
  admitted_ += static_cast<std::uint64_t>(step.admitted);
  admitted_hits_ += static_cast<std::uint64_t>(step.admitted_hits);
  admitted_tokens_ += static_cast<std::uint64_t>(step.admitted_tokens);
  cached_tokens_ += static_cast<std::uint64_t>(step.cached_tokens);
  swapped_tokens_ += static_cast<std::uint64_t>(step.swapped_tokens);
  const SwapStatus &swap = step.kv.swap, &before = before_.swap;
  evicted_ += static_cast<std::uint64_t>(risen(step.kv.evicted, before_.evicted));
  swap_total_.out += risen(swap.out, before.out);
  swap_total_.in += risen(swap.in, before.in);
  swap_total_.evicted += risen(swap.evicted, before.evicted);
  swap_total_.failed += risen(swap.failed, before.failed);
  swap_total_.declined += risen(swap.declined, before.declined);
  before_ = step.kv;
  if (step.step_s > 0) {
    ++steps_;
    step_.observe(step.step_s);
  }
}

void Registry::add(const RequestStats& request) {
  ++requests_;
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

void Registry::add(const HttpStats& answer) { ++http_[{answer.path, answer.status}]; }

void Registry::add(const DoorStats& door) {
  turned_away_ += static_cast<std::uint64_t>(door.turned_away);
  failed_handshakes_ += static_cast<std::uint64_t>(door.failed_handshakes);
}

std::string Registry::text() const {
  Exposition out;
  const CacheStatus& kv = last_.kv;
  const double total = kv.total, available = kv.free + kv.cached;
  const double used = total > 0 ? (total - available) / total : 0;
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const double token_rate = share(cached_tokens_, admitted_tokens_);

  out.counter("fastdeploy:requests_number_total", "Requests that have ended", static_cast<double>(requests_));
  out.counter("fastdeploy:request_success_total", "Requests finished without an error", static_cast<double>(successes_));
  out.gauge("fastdeploy:num_requests_running", "Sequences that hold a slot", last_.running);
  out.gauge("fastdeploy:num_requests_waiting", "Sequences that wait for a slot", last_.waiting);
  out.histogram("fastdeploy:time_to_first_token_seconds", "Arrival to first token", ttft_);
  out.histogram("fastdeploy:time_per_output_token_seconds", "Mean gap between a request's tokens", tpot_);
  out.histogram("fastdeploy:e2e_request_latency_seconds", "Arrival to last token", e2e_);
  out.histogram("fastdeploy:request_inference_time_seconds", "First step to last token", inference_);
  out.histogram("fastdeploy:request_queue_time_seconds", "Arrival to first step", queue_);
  out.histogram("fastdeploy:request_prefill_time_seconds", "First step to first token", prefill_);
  out.histogram("fastdeploy:request_decode_time_seconds", "First token to last", decode_);
  out.counter("fastdeploy:prompt_tokens_total", "Prompt tokens run through the model", static_cast<double>(prompt_tokens_));
  out.counter("fastdeploy:generation_tokens_total", "Tokens generated", static_cast<double>(generated_tokens_));
  out.histogram("fastdeploy:request_prompt_tokens", "Prompt tokens of a request", request_prompt_);
  out.histogram("fastdeploy:request_generation_tokens", "Tokens generated for a request", request_generation_);
  out.histogram("fastdeploy:request_params_max_tokens", "max_tokens of a request", request_max_tokens_);
  out.gauge("fastdeploy:gpu_cache_usage_perc", "Share of KV blocks that sequences hold; 1 is full", used);
  const std::string labels = "model=\"" + escape_label(constants_.model) + "\",block_size=\"" +
                             std::to_string(constants_.block_size) + "\",cache_dtype=\"" +
                             escape_label(constants_.cache_dtype) + "\",gpu_memory_utilization=\"" +
                             std::to_string(constants_.gpu_memory_utilization) + "\",total_block_num=\"" +
                             std::to_string(kv.total) + "\"";
  out.gauge("fastdeploy:cache_config_info", "Cache configuration, as labels", 1, labels);
  out.gauge("fastdeploy:available_gpu_block_num", "KV blocks free or evictable", available);
  out.gauge("fastdeploy:free_gpu_block_num", "KV blocks free", kv.free);
  out.gauge("fastdeploy:max_gpu_block_num", "KV blocks in all", total);
  out.gauge("fastdeploy:max_cpu_block_num", "Blocks of the swap space", kv.swap.total);
  out.gauge("fastdeploy:available_gpu_resource", "Share of KV blocks free or evictable", 1 - used);
  out.gauge("fastdeploy:hit_req_rate", "Share of admitted sequences that found a prefix",
            share(admitted_hits_, admitted_));
  out.gauge("fastdeploy:hit_token_rate", "Share of prompt tokens found in the prefix cache", token_rate);
  out.gauge("fastdeploy:gpu_hit_token_rate", "Share of prompt tokens found in KV memory",
            share(cached_tokens_ - swapped_tokens_, admitted_tokens_));
  out.gauge("fastdeploy:cpu_hit_token_rate", "Share of prompt tokens found in the swap space",
            share(swapped_tokens_, admitted_tokens_));
  out.counter("fastdeploy:prefix_cache_token_num", "Prompt tokens found in the prefix cache",
              static_cast<double>(cached_tokens_));
  out.counter("fastdeploy:prefix_gpu_cache_token_num", "Prompt tokens found in KV memory",
              static_cast<double>(cached_tokens_ - swapped_tokens_));
  out.counter("fastdeploy:prefix_cpu_cache_token_num", "Prompt tokens found in the swap space",
              static_cast<double>(swapped_tokens_));
  out.gauge("fastdeploy:batch_size", "Sequences in the last step", last_.running);
  out.gauge("fastdeploy:max_batch_size", "Sequences a step can hold", constants_.max_num_seqs);
  out.gauge("fastdeploy:available_batch_size", "Slots free", constants_.max_num_seqs - last_.running);
  out.gauge("fastdeploy:first_token_latency", "Arrival to first token of the last request, seconds", last_ttft_s_);
  out.gauge("fastdeploy:infer_latency", "Arrival to last token of the last request, seconds", last_e2e_s_);

  out.counter("troupe:steps_total", "Steps run", static_cast<double>(steps_));
  out.counter("troupe:preemptions_total", "Sequences put back for lack of KV blocks", static_cast<double>(preempted_));
  out.histogram("troupe:step_seconds", "Device time of a step", step_);
  out.gauge("troupe:kv_blocks_leased", "KV blocks leased to sequences", kv.leased + kv.moving);
  out.gauge("troupe:kv_blocks_cached", "KV blocks that no sequence holds and a prompt may find", kv.cached);
  out.counter("troupe:prefix_cache_queried_tokens_total", "Prompt tokens of admitted sequences",
              static_cast<double>(admitted_tokens_));
  out.counter("troupe:prefix_cache_evictions_total", "Cached KV blocks given to other contents",
              static_cast<double>(evicted_));
  out.gauge("troupe:swap_blocks_cached", "Blocks of the swap space that a prompt may find", kv.swap.cached);
  const auto blocks = [&out](const char* name, const char* help, std::int64_t count) {
    out.counter(name, help, static_cast<double>(count));
  };
  blocks("troupe:swap_out_blocks_total", "KV blocks copied to the swap space", swap_total_.out);
  blocks("troupe:swap_in_blocks_total", "KV blocks copied back", swap_total_.in);
  blocks("troupe:swap_evictions_total", "Blocks of the swap space given to other contents", swap_total_.evicted);
  blocks("troupe:swap_failed_blocks_total", "Blocks whose copy failed; they are computed again",
         swap_total_.failed);
  blocks("troupe:swap_declined_blocks_total", "Blocks not copied because computing them again is faster",
         swap_total_.declined);
  out.heading("troupe:http_answers_total", "HTTP answers by route and status", "counter");
  for (const auto& [key, count] : http_) {
    out.sample("troupe:http_answers_total",
               "path=\"" + escape_label(key.first) + "\",status=\"" + std::to_string(key.second) + "\"",
               static_cast<double>(count));
  }
  out.counter("troupe:connections_turned_away_total", "Connections beyond a limit, and requests of a proxy's client beyond it",
              static_cast<double>(turned_away_));
  out.counter("troupe:tls_handshakes_failed_total", "Connections that ended before their TLS began",
              static_cast<double>(failed_handshakes_));
  return out.take();
}

}  // namespace troupe::metrics
