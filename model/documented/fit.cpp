#include "model/documented/fit.h"

#include <algorithm>
#include <utility>

#include "config/quantization.h"
#include "gpu/gpu_checks.h"
#include "model/documented/measured_speeds.h"
#include "model/ranks/part.h"
#include "model/sizing.h"

namespace troupe::model {
namespace {

constexpr int kMostCards = 64;
/// Context of the steps whose speed is given, that of docs/performance.md.
constexpr int kContext = kMeasuredContext;
/// What a process's context takes of a GPU before anything is allocated: an estimate.
constexpr std::uint64_t kContextBytes = std::uint64_t{600} << 20;

/// The probe of one of a machine's cards: as if its driver had been asked and nothing else used it.
CudaProbe probe_of(const Card& card, int count) {
  CudaProbe probe;
  probe.name = std::string(card.name);
  probe.total = card.memory_bytes();
  probe.free = probe.total - kContextBytes;
  probe.capability = card.capability;
  probe.devices = count;
  probe.reaches = card.reaches_peers ? ~std::uint64_t{0} : 0;
  return probe;
}

/// The machine's own, and for more cards than it has those of a machine with more of the first.
GpuProbes probes_for(const FitMachine& machine, int cards) {
  GpuProbes probes = machine.probes;
  probes.visible = [] { return std::string(); };
  if (cards <= machine.cards || machine.device != config::Device::cuda) return probes;
  probes.gpu = [gpu = machine.probes.gpu, cards](int) {
    Result<CudaProbe> probe = gpu(0);
    if (!probe) return probe;
    probe->devices = cards;
    if (probe->reaches != 0) probe->reaches = ~std::uint64_t{0};
    return probe;
  };
  return probes;
}

/// Of the rank's part alone: exchanges between ranks are left out.
double computed_speed(const ModelSpec& part, const WeightFormats& formats, const FitMachine& machine,
                      int sequences, int context) {
  Ceilings ceilings = *machine.ceilings;
  if (formats.fp8()) ceilings.flops_per_s = std::max(ceilings.flops_per_s, machine.fp8_flops_per_s);
  return sequences / bound_s(decode_work(part, formats, sequences, context), ceilings);
}

void add_speeds(Fit& answer, const FitQuestion& question, const FitMachine& machine, const Preflight& sized,
                const ModelSpec& part) {
  const int context = std::min(kContext, answer.max_model_len - 1);
  const auto room = static_cast<int>(std::min<std::int64_t>(answer.kv_tokens / (context + 1), 1 << 20));
  const int most = std::clamp(room, 1, answer.max_num_seqs);
  for (const int sequences : {1, most}) {
    if (sequences == 1 && !answer.speeds.empty()) continue;
    FitSpeed speed{.sequences = sequences, .context = context};
    const bool plain = sized.formats.kv == kernels::KvFormat::plain && context == kContext;
    const MeasuredStep* measured = plain ? find_measured(question.shape, question.options.quantization.method,
                                                         machine.card, answer.cards, sequences)
                                         : nullptr;
    if (measured != nullptr) {
      speed.tokens_per_s = tokens_per_s(*measured);
      speed.measured = std::string(measured->date);
    } else if (machine.ceilings) {
      speed.tokens_per_s = computed_speed(part, sized.formats, machine, sequences, context);
    } else {
      continue;
    }
    answer.speeds.push_back(std::move(speed));
  }
}

void add_rank_steps(Fit& answer, const FitQuestion& question, const FitMachine& machine,
                    const WeightFormats& formats) {
  if (!machine.ceilings || formats.kv != kernels::KvFormat::plain) return;
  const std::string& method = question.options.quantization.method;
  Ceilings ceilings = *machine.ceilings;
  if (formats.fp8()) ceilings.flops_per_s = std::max(ceilings.flops_per_s, machine.fp8_flops_per_s);
  for (const int sequences : measured_sequences(question.shape, method, machine.card)) {
    const auto steps =
        rank_steps(question.spec, formats, question.shape, method, machine.card, ceilings, sequences);
    answer.rank_steps.insert(answer.rank_steps.end(), steps.begin(), steps.end());
  }
}

}  // namespace

const char* to_string(FitVerdict verdict) {
  switch (verdict) {
    case FitVerdict::fits: return "yes";
    case FitVerdict::does_not_fit: return "no";
    case FitVerdict::unknown: return "unknown";
  }
  return "?";
}

Result<FitMachine> machine_with(const Card& card, int count) {
  if (count < 1 || count > kMostCards) {
    return invalid("--cards: got " + std::to_string(count) + ", expected a whole number from 1 to " +
                       std::to_string(kMostCards),
                   "cards");
  }
  if (card.capability < kLeastCapability) {
    return failure(Code::unsupported, "The " + std::string(card.name) + " has compute capability " +
                                          capability_text(card.capability) + "; " +
                                          capability_text(kLeastCapability) + " or higher is needed.");
  }
  FitMachine machine;
  machine.name = machine.card = std::string(card.name);
  machine.cards = count;
  machine.memory_bytes = card.memory_bytes();
  machine.ceilings = Ceilings{card.memory_tb_per_s * 1e12, card.bf16_tflops * 1e12};
  machine.fp8_flops_per_s = card.fp8_tflops * 1e12;
  machine.probes.gpu = [probe = probe_of(card, count)](int) -> Result<CudaProbe> { return probe; };
  machine.probes.nccl = []() -> Result<std::string> { return std::string(); };
  return machine;
}

FitQuestion question_of(const DocumentedModel& model, const ModelSpec& spec, const FitMachine& machine,
                        config::Options options) {
  FitQuestion question{std::string(model.name), std::string(model.shape), spec, {}, published_bytes(spec)};
  if (machine.device == config::Device::cpu) {
    question.options = std::move(options);
    return question;
  }
  config::SchedulerOptions& limits = options.scheduler;
  if (limits.max_model_len == 0) limits.max_model_len = model.max_model_len;
  if (limits.max_num_seqs == 0) limits.max_num_seqs = model.max_num_seqs;
  question.options = std::move(options);
  return question;
}

Fit fit(const FitQuestion& question, const FitMachine& machine, int cards) {
  Fit answer{.cards = cards};
  config::Options options = question.options;
  const std::string& method = options.quantization.method;
  if (const std::string missing = config::unavailable_quantization(method); !missing.empty()) {
    answer.reason = "--quantization " + method + " is not offered yet: " + missing + ".";
    return answer;
  }
  options.device.device = machine.device;
  options.parallel.tensor_parallel_size = cards;
  const GpuProbes probes = probes_for(machine, cards);
  Result<Preflight> sized = preflight_shape(question.spec, options, probes);
  if (!sized && cards > 1 && question.spec.experts > 0) {
    options.parallel.enable_expert_parallel = true;
    Result<Preflight> whole = preflight_shape(question.spec, options, probes);
    if (whole) {
      answer.experts_whole = true;
      sized = std::move(whole);
    }
  }
  if (!sized) {
    answer.verdict = FitVerdict::does_not_fit;
    answer.reason = sized.status().message;
    if (!answer.reason.ends_with('.')) answer.reason += '.';
    return answer;
  }
  const Result<ModelSpec> part = part_of(question.spec, sized->shard);
  if (!part) {
    answer.reason = part.status().message;
    return answer;
  }
  const wire::Capacity& capacity = sized->capacity;
  answer.verdict = FitVerdict::fits;
  answer.weight_bytes = capacity.weight_bytes;
  answer.kv_bytes = capacity.kv_bytes;
  answer.activation_bytes = capacity.arena_bytes;
  if (sized->device == config::Device::cuda) {
    answer.other_bytes =
        cuda_fixed_bytes(capacity, *part, sized->formats) - capacity.weight_bytes - capacity.arena_bytes;
  }
  answer.kv_tokens = std::int64_t{capacity.kv_blocks} * capacity.block_tokens;
  answer.max_model_len = capacity.max_model_len;
  answer.max_num_seqs = capacity.max_slots;
  answer.sequences_at_full_length = sized->sequences_at_full_length;
  add_speeds(answer, question, machine, *sized, *part);
  add_rank_steps(answer, question, machine, sized->formats);
  return answer;
}

Fit fit_least(const FitQuestion& question, const FitMachine& machine, int most) {
  Fit last = fit(question, machine, 1);
  for (int cards = 2; cards <= most && last.verdict == FitVerdict::does_not_fit; cards *= 2) {
    Fit next = fit(question, machine, cards);
    if (next.verdict != FitVerdict::fits && !part_of(question.spec, {0, cards, false}).ok()) break;
    last = std::move(next);
  }
  return last;
}

std::uint64_t published_bytes(const ModelSpec& spec) {
  ModelSpec with_drafts = spec;
  with_drafts.draft_layers = spec.nextn_layers;
  return 2 * static_cast<std::uint64_t>(with_drafts.parameters());
}

}  // namespace troupe::model
