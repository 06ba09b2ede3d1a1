#include "bench/scheduler_sim/scenarios.h"

namespace troupe::bench {
namespace {

constexpr int kStepTokens = 8192;
constexpr int kNoPromptIsLong = 1 << 24;

ReplayPolicy policy(const char* name, int step_tokens) {
  ReplayPolicy p;
  p.name = name;
  p.scheduler.max_num_batched_tokens = step_tokens;
  p.scheduler.min_prefill_share = 1;
  p.scheduler.max_queued_requests = 1 << 30;
  p.scheduler.max_queued_tokens = std::int64_t{1} << 50;
  return p;
}

}  // namespace

std::vector<ReplayPolicy> compared_policies() {
  // One prompt at a time, whole, beside the decodes.
  ReplayPolicy fcfs = policy("FCFS", 1 << 17);
  fcfs.scheduler.max_num_partial_prefills = 1;
  fcfs.scheduler.long_prefill_token_threshold = kNoPromptIsLong;
  // Decodes, then prompts in order of arrival, each as much as is left of the budget.
  ReplayPolicy vllm = policy("vLLM", kStepTokens);
  vllm.scheduler.long_prefill_token_threshold = kNoPromptIsLong;
  // The same with one prompt at a time.
  ReplayPolicy fastdeploy = policy("FastDeploy", kStepTokens);
  fastdeploy.scheduler.max_num_partial_prefills = 1;
  fastdeploy.scheduler.long_prefill_token_threshold = kNoPromptIsLong;
  // Ours with ENABLE_V1_KVCACHE_SCHEDULER=0.
  ReplayPolicy reserving = policy("reserving", kStepTokens);
  reserving.scheduler.preempts = false;
  ReplayPolicy ours = policy("ours", kStepTokens);
  ours.scheduler.min_prefill_share = config::SchedulerOptions{}.min_prefill_share;
  ours.scheduler.max_prefill_step_ms = config::default_prefill_step_ms(config::Device::cuda);
  return {fcfs, vllm, fastdeploy, reserving, ours};
}

std::vector<Scenario> scenarios(std::uint32_t requests) {
  Scenario chats;
  chats.trace.name = "chats";
  chats.trace.rate = 40;
  chats.trace.prompt = {60, 1.0, 4000};
  chats.trace.output = {200, 0.8, 2000};
  chats.trace.mean_turns = 4;
  chats.trace.systems = 24;
  chats.trace.system_tokens = 1500;
  chats.rates = {10, 20, 30, 40, 45, 50, 55};

  Scenario mixed;
  mixed.trace.name = "mixed";
  mixed.trace.rate = 16;
  mixed.trace.prompt = {600, 1.3, 32'000};
  mixed.trace.output = {200, 0.9, 3000};
  mixed.rates = {4, 8, 12, 14, 16, 18, 20, 22};

  Scenario bursts;
  bursts.trace.name = "bursts";
  bursts.trace.rate = 8;
  bursts.trace.prompt = {120, 1.0, 4000};
  bursts.trace.output = {150, 0.8, 2000};
  bursts.trace.burst = 20;
  bursts.trace.documents = 0.04;
  bursts.rates = {1, 2, 4, 6, 8, 9, 10, 12};

  Scenario scarce = mixed;
  scarce.trace.name = "scarce";
  scarce.trace.rate = 9;
  scarce.device.kv_blocks = 1400;  // 90,000 tokens: a card of 50 GB
  scarce.rates = {2, 4, 6, 7, 8, 9, 10, 11};

  Scenario saturated = mixed;
  saturated.trace.name = "saturated";
  saturated.trace.rate = 1000;  // all at once, so to speak: what counts is tokens a second
  saturated.rates = {};
  saturated.device.slots = 1024;

  Scenario loop;
  loop.trace.name = "loop";
  loop.trace.rate = 0;
  loop.trace.clients = 64;
  loop.trace.prompt = {2256, 0.1, 4000};
  loop.trace.output = {64, 0.1, 200};

  Scenario behind;
  behind.trace.name = "behind";
  behind.trace.rate = 5;
  behind.trace.prompt = {30, 0.7, 250};
  behind.trace.output = {40, 0.8, 400};
  behind.trace.documents = 0.12;
  behind.trace.document_least = behind.trace.document_most = 32'000;
  behind.rates = {2, 3, 4, 5, 6, 7, 8};

  std::vector<Scenario> all = {chats, mixed, bursts, scarce, saturated, loop, behind};
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].trace.requests = requests;
    all[i].trace.seed = 1 + i;
  }
  return all;
}

}  // namespace troupe::bench
