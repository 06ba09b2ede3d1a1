#include "model/sizing.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "config/media_rules.h"
#include "kernels/batch.h"
#include "kernels/cuda/attention/frame.h"
#include "kernels/cuda/scratch.h"
#include "model/bytes_text.h"
#include "model/cuda/step_memory.h"
#include "model/cuda/step_scratch.h"
#include "model/decoder.h"
#include "model/drafts/drafter.h"
#include "model/plan_check.h"
#include "model/swap/swap_sizing.h"
#include "model/vision/tower_memory.h"
#include "model/weights.h"

namespace troupe::model {
namespace {

constexpr int kDefaultSequences = 32;
constexpr int kDefaultTokens = 512;
constexpr int kDefaultCudaTokens = 8192;
/// KV tokens that each of the default number of sequences should find on a GPU; and one at least on the CPU.
constexpr int kTokensOfASequence = 1024;
/// Estimate for graphs, the kernels' code and the driver's own memory.
constexpr std::uint64_t kCudaExtraBytes = std::uint64_t{512} << 20;
/// Left free: the driver allocates a little while it runs.
constexpr std::uint64_t kCudaSpareBytes = std::uint64_t{128} << 20;
constexpr std::uint64_t kDefaultKvBytes = std::uint64_t{4} << 30;
constexpr std::int64_t kMaxBlocks = 1 << 24;
/// Rows of logits of a step beyond one a sequence, where the worker drafts. A GPU checks one draft of each of
/// its sequences at almost the cost of none.
constexpr int kMostDraftedRows = 128, kMostCudaDraftedRows = 256;
constexpr int kEchoVocab = 1 << 17;
constexpr int kEchoPositions = 1 << 17;
constexpr std::int64_t kEchoBlocks = 1 << 20;

std::int64_t blocks_for(std::int64_t tokens) {
  return (tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
}

int or_default(int value, int fallback) { return value > 0 ? value : fallback; }

std::uint64_t usable_bytes(const HostMemory& memory) {
  return memory.available - std::min(memory.available, memory.reserved);
}

/// `kv`: the KV blocks, named; empty when there is no room for any.
Status too_little(const wire::Capacity& capacity, const std::string& kv, std::uint64_t kv_bytes,
                  const HostMemory& memory, const std::string& advice) {
  std::vector<std::pair<std::string, std::uint64_t>> parts = {{"the weights", capacity.weight_bytes},
                                                              {"activations", capacity.arena_bytes}};
  if (!kv.empty()) parts.emplace_back(kv, kv_bytes);
  if (memory.reserved > 0) parts.emplace_back("the rest of the server", memory.reserved);
  std::string text;
  std::uint64_t sum = 0;
  for (const auto& [what, bytes] : parts) {
    text += text.empty() ? "" : what == parts.back().first ? " and " : ", ";
    text += what + " (" + bytes_text(bytes) + ")";
    sum += bytes;
  }
  return failure(Code::unavailable, "Too little memory: " + text + " take " + bytes_text(sum) + ", " +
                                        bytes_text(memory.available) + " are free" + memory.limit + "; " +
                                        advice + ".");
}

// The most top entries beside a token that requests may ask for. A result has to hold them.
int most_logprobs(const config::LimitOptions& limits, int vocab) {
  const auto allowed = [vocab](int limit) { return limit < 0 ? vocab : limit; };
  return std::min({std::max({kernels::kMaxTopLogprobs, allowed(limits.max_logprobs),
                             allowed(limits.max_completion_logprobs)}),
                   vocab, wire::kMostTopLogprobs});
}

// The limits, which do not depend on the device's memory; `sequences` and `tokens` are its defaults.
Result<wire::Capacity> common(const config::Options& options, int max_positions, int vocab,
                              int sequences = kDefaultSequences, int tokens = kDefaultTokens) {
  const config::SchedulerOptions& asked = options.scheduler;
  if (asked.block_size != kernels::kBlockTokens) {
    return invalid("--block-size is " + std::to_string(asked.block_size) + "; only 64 is offered.",
                   "block-size");
  }
  if (asked.max_model_len > max_positions) {
    return invalid("--max-model-len is " + std::to_string(asked.max_model_len) +
                       "; the model allows at most " + std::to_string(max_positions) + ".",
                   "max-model-len");
  }
  wire::Capacity capacity;
  capacity.block_tokens = kernels::kBlockTokens;
  capacity.max_slots = or_default(asked.max_num_seqs, sequences);
  capacity.max_tokens_per_step = or_default(asked.max_num_batched_tokens, tokens);
  capacity.max_model_len = or_default(
      asked.max_model_len, std::min(or_default(asked.found_model_len, max_positions), max_positions));
  capacity.vocab_size = vocab;
  capacity.max_logprobs = most_logprobs(options.limits, vocab);
  const config::MediaSizes sizes = config::media_rules(options.media).sizes;
  const std::int64_t pixels = std::max(sizes.image.max_pixels, sizes.video.max_pixels);
  capacity.frame_patches = static_cast<std::int32_t>(pixels / (kPatchSide * kPatchSide));
  return capacity;
}

// What rows may draft, once the number of slots is known.
void size_drafts(wire::Capacity& capacity, const config::SpeculationOptions& options,
                 int most_rows = kMostDraftedRows) {
  if (options.method == config::DraftMethod::none) return;
  capacity.max_drafts = capacity.max_proposed = std::min(options.tokens, kMostDrafts);
  capacity.max_sampled = capacity.max_slots + std::min(capacity.max_slots * capacity.max_drafts, most_rows);
}

DecoderLimits limits_of(const wire::Capacity& capacity, const WeightFormats& formats) {
  return {.rows = capacity.max_tokens_per_step,
          .sequences = capacity.max_slots,
          .drafts = drafted_rows(capacity),
          .positions = capacity.max_model_len,
          .kv_format = formats.kv,
          .tops = most_tops(capacity)};
}

// Blocks that max_slots sequences of full length use; more would never be used.
std::int64_t useful_blocks(const wire::Capacity& capacity) {
  return std::min(kMaxBlocks, blocks_for(capacity.max_model_len) * capacity.max_slots);
}

}  // namespace

int kept_media_tokens(const config::Options& options, const wire::Capacity& capacity) {
  const int asked = options.media.encoder_cache_tokens;
  return asked < 0 ? capacity.max_tokens_per_step : asked;
}

std::uint64_t encoder_output_bytes(const wire::Capacity& capacity, const ModelSpec& spec,
                                   const WeightFormats& formats, const config::Options& options) {
  const std::int64_t tokens = std::int64_t{capacity.media_tokens} + kept_media_tokens(options, capacity);
  return static_cast<std::uint64_t>(tokens) * static_cast<std::uint64_t>(kernels::padded(spec.hidden)) *
         size_of(formats.activations);
}

int sequences_at_full_length(const wire::Capacity& capacity) {
  return static_cast<int>(
      std::min<std::int64_t>(capacity.max_slots, capacity.kv_blocks / blocks_for(capacity.max_model_len)));
}

namespace {

// A refusal for want of memory also names the first format that would fit, if there is one.
template <class Fits>
Status with_format(Status refused, const std::vector<FormatSize>& sizes, Fits&& fits) {
  const auto used = std::ranges::find(sizes, true, &FormatSize::in_use);
  if (refused.code != Code::unavailable || used == sizes.end()) return refused;
  for (const FormatSize& size : sizes) {
    if (size.weight_bytes >= used->weight_bytes || !fits(size.formats)) continue;
    refused.message.pop_back();  // the full stop
    refused.message += "; with --quantization " + size.name + " the weights take " +
                       bytes_text(size.weight_bytes) + ", and everything fits.";
    break;
  }
  return refused;
}

// Sets how many tokens of encoder output sequences hold, and adds the memory of these and of what is kept.
// Returns the bytes.
std::uint64_t size_encoder_output(wire::Capacity& capacity, const ModelSpec& spec,
                                  const WeightFormats& formats, const config::Options& options) {
  capacity.media_tokens = capacity.max_model_len;
  const std::uint64_t bytes = encoder_output_bytes(capacity, spec, formats, options);
  capacity.arena_bytes += bytes;
  return bytes;
}

Result<wire::Capacity> try_cpu(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                               const config::Options& options, const HostMemory& memory) {
  Result<wire::Capacity> made = common(options, spec.max_positions, spec.vocab);
  if (!made) return made;
  wire::Capacity& capacity = *made;
  capacity.embedding_width = spec.hidden;
  size_drafts(capacity, options.speculation);
  const DecoderLimits limits = limits_of(capacity, formats);
  capacity.weight_bytes = WeightLayout::make(spec, formats, tied, {}).bytes;
  capacity.arena_bytes = Activations::make(spec, formats.activations, limits, {}).bytes;
  if (spec.vision) {
    capacity.arena_bytes +=
        TowerMemory::make(*spec.vision, spec.hidden, formats.activations, capacity.frame_patches, 0, {})
            .bytes;
  }
  const std::uint64_t fixed = capacity.weight_bytes + capacity.arena_bytes;
  const std::uint64_t usable = usable_bytes(memory);
  if (fixed > usable) {
    std::string advice = capacity.weight_bytes <= usable
                             ? "a lower --max-num-batched-tokens or --max-num-seqs needs less"
                             : "the weights alone need a machine with more";
    if (formats.activations == DType::f32) advice += ", or --dtype bfloat16";
    return too_little(capacity, "", 0, memory, advice);
  }
  const std::uint64_t free = usable - fixed;
  const std::uint64_t block_bytes = kv_shape(spec, formats).block_bytes();
  std::uint64_t blocks = 0;
  int wanted = std::max(1, options.scheduler.max_model_len);
  const char* flag = "--cpu-kv-bytes";
  if (options.device.num_gpu_blocks_override > 0) {
    blocks = static_cast<std::uint64_t>(options.device.num_gpu_blocks_override);
    flag = "--num-gpu-blocks-override";
  } else if (options.device.cpu_kv_bytes > 0) {
    blocks = static_cast<std::uint64_t>(options.device.cpu_kv_bytes) /
             static_cast<std::uint64_t>(options.parallel.tensor_parallel_size) / block_bytes;
  } else {
    blocks = std::min<std::uint64_t>(std::min(free / 4, kDefaultKvBytes) / block_bytes,
                                     static_cast<std::uint64_t>(useful_blocks(capacity)));
    const int least = std::min(kTokensOfASequence, capacity.max_model_len);
    blocks = std::max(blocks, std::min(static_cast<std::uint64_t>(blocks_for(least)), free / block_bytes));
    if (options.scheduler.max_model_len == 0) wanted = least;
  }
  blocks = std::min<std::uint64_t>(blocks, kMaxBlocks);
  if (blocks * block_bytes > free) {
    return too_little(capacity, std::to_string(blocks) + " KV blocks", blocks * block_bytes, memory,
                      std::string("lower ") + flag);
  }
  const std::int64_t tokens = static_cast<std::int64_t>(blocks) * kernels::kBlockTokens;
  if (tokens < wanted) {
    const std::uint64_t needed = static_cast<std::uint64_t>(blocks_for(wanted)) * block_bytes;
    if (options.device.num_gpu_blocks_override == 0 && options.device.cpu_kv_bytes > 0 && needed <= free) {
      const auto ranks = static_cast<std::uint64_t>(options.parallel.tensor_parallel_size);
      return invalid("--cpu-kv-bytes is " + std::to_string(options.device.cpu_kv_bytes) + "; a sequence of " +
                         std::to_string(wanted) + " tokens needs at least " + std::to_string(needed * ranks) +
                         ".",
                     "cpu-kv-bytes");
    }
    return too_little(capacity, "KV blocks for " + std::to_string(wanted) + " tokens", needed, memory,
                      "lower --max-model-len or raise " + std::string(flag));
  }
  capacity.kv_blocks = static_cast<std::int32_t>(blocks);
  capacity.kv_bytes = blocks * block_bytes;
  capacity.max_model_len = static_cast<std::int32_t>(std::min<std::int64_t>(capacity.max_model_len, tokens));
  if (spec.vision) {
    const std::uint64_t bytes = size_encoder_output(capacity, spec, formats, options);
    if (bytes > free - capacity.kv_bytes) {
      return too_little(capacity, "KV blocks", capacity.kv_bytes, memory,
                        "a lower --max-model-len or --max-encoder-cache needs less for images");
    }
  }
  return made;
}

}  // namespace

Result<wire::Capacity> size_cpu(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                const config::Options& options, const HostMemory& memory) {
  Result<wire::Capacity> made = try_cpu(spec, formats, tied, options, memory);
  if (made) {
    const std::uint64_t left = usable_bytes(memory) - made->weight_bytes - made->arena_bytes - made->kv_bytes;
    const Status swap = size_swap(*made, options, kv_shape(spec, formats).block_bytes(), left);
    return swap.ok() ? made : Result<wire::Capacity>(swap);
  }
  return with_format(
      made.status(), format_sizes(spec, formats, tied, config::Device::cpu, options.quantization),
      [&](const WeightFormats& other) { return try_cpu(spec, other, tied, options, memory).ok(); });
}

namespace {

// The vision tower's memory on a GPU, working memory of its ops and what ranks exchange included.
std::uint64_t cuda_tower_bytes(const VisionSpec& spec, int hidden, DType dtype, int frame_patches,
                               const config::ParallelOptions& parallel) {
  const kernels::FrameAttention largest = frame_attention_of(spec, dtype, frame_patches);
  const std::size_t packed = kernels::cuda::packed_bytes(largest, kernels::cuda::kH200);
  const bool in_place = !kernels::cuda::frame_is_packed(largest, kernels::cuda::kH200);
  const int ranks = parallel.tensor_parallel_size;
  const bool together = ranks > 1 && !parallel.disable_custom_all_reduce;
  return TowerMemory::make(spec, hidden, dtype, frame_patches, in_place ? 0 : packed, {}).bytes +
         kernels::cuda::kBiasedSums +
         (together ? tower_inbox_bytes(hidden, dtype, frame_patches, packed, ranks) : 0);
}

}  // namespace

Result<wire::Capacity> cuda_limits(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                   const config::Options& options, int sequences) {
  Result<wire::Capacity> made =
      common(options, spec.max_positions, spec.vocab, sequences, kDefaultCudaTokens);
  if (!made) return made;
  made->embedding_width = spec.hidden;
  size_drafts(*made, options.speculation, kMostCudaDraftedRows);
  DecoderLimits limits = limits_of(*made, formats);
  limits.staged = false;
  made->weight_bytes = WeightLayout::make(spec, formats, tied, {}).bytes;
  if (spec.vision) {
    size_encoder_output(*made, spec, formats, options);
    made->arena_bytes += cuda_tower_bytes(*spec.vision, spec.hidden, formats.activations, made->frame_patches,
                                          options.parallel);
  }
  made->arena_bytes +=
      Activations::make(spec, formats.activations, limits, {}).bytes + StepMemory::make(*made, {}).bytes;
  return made;
}

std::uint64_t cuda_fixed_bytes(const wire::Capacity& capacity, const ModelSpec& spec,
                               const WeightFormats& formats) {
  const StepScratch scratch(spec, formats, kernels::cuda::kH200,
                            {.rows = capacity.max_tokens_per_step,
                             .sequences = capacity.max_slots,
                             .drafts = drafted_rows(capacity)},
                            1 + capacity.max_drafts);
  return capacity.weight_bytes + capacity.arena_bytes + scratch.most() + kCudaExtraBytes;
}

Status fit_cuda_kv(wire::Capacity& capacity, const ModelSpec& spec, const WeightFormats& formats,
                   const config::Options& options, const GpuMemory& memory, std::uint64_t to_come) {
  const std::uint64_t block_bytes = cuda_kv_shape(spec, formats).block_bytes();
  const std::uint64_t taken = memory.total - memory.free + to_come;
  const auto share =
      static_cast<std::uint64_t>(options.device.gpu_memory_utilization * static_cast<double>(memory.total));
  const std::uint64_t usable = memory.free - std::min(memory.free, to_come + kCudaSpareBytes);
  const std::uint64_t budget = std::min(usable, share - std::min(share, taken));

  const int overriding = options.device.num_gpu_blocks_override;
  const auto useful = static_cast<std::uint64_t>(useful_blocks(capacity));
  const std::uint64_t blocks =
      overriding > 0 ? static_cast<std::uint64_t>(overriding) : std::min(budget / block_bytes, useful);
  const std::int64_t tokens = static_cast<std::int64_t>(blocks) * kernels::kBlockTokens;
  const std::int64_t wanted = std::max(1, options.scheduler.max_model_len);
  const auto refused = [&](std::uint64_t kv_bytes, const std::string& what, const std::string& advice) {
    return failure(Code::unavailable, "Too little GPU memory: " + what + " take " +
                                          bytes_text(to_come + kv_bytes) + ", " + bytes_text(memory.free) +
                                          " of " + bytes_text(memory.total) + " are free; " + advice + ".");
  };
  const std::string fixed = to_come == 0
                                ? std::string()
                                : "the weights (" + bytes_text(capacity.weight_bytes) + "), activations (" +
                                      bytes_text(capacity.arena_bytes) + ") and ";
  if (overriding > 0 && blocks * block_bytes > usable) {
    return refused(blocks * block_bytes, fixed + std::to_string(blocks) + " KV blocks",
                   "lower --num-gpu-blocks-override");
  }
  if (blocks == 0 || (options.scheduler.max_model_len > 0 && tokens < wanted)) {
    const std::uint64_t needed = static_cast<std::uint64_t>(blocks_for(wanted)) * block_bytes;
    // If the memory itself is too small, a limit has to go down. If only the allowed share is too small, the
    // share can go up.
    const bool room = needed <= usable && overriding == 0;
    const char* lower = capacity.weight_bytes > memory.free
                            ? "the weights alone need a GPU with more free memory"
                            : "lower --max-model-len, --max-num-batched-tokens or --max-num-seqs";
    return refused(
        needed, fixed + "KV blocks for " + std::to_string(wanted) + " tokens",
        room ? "raise --gpu-memory-utilization, which allows " + bytes_text(share) + " in all" : lower);
  }
  capacity.kv_blocks = static_cast<std::int32_t>(std::min<std::uint64_t>(blocks, kMaxBlocks));
  capacity.kv_bytes = static_cast<std::uint64_t>(capacity.kv_blocks) * block_bytes;
  capacity.max_model_len = static_cast<std::int32_t>(std::min<std::int64_t>(capacity.max_model_len, tokens));
  return {};
}

namespace {

Result<wire::Capacity> try_cuda(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                const config::Options& options, const GpuMemory& memory, int sequences) {
  Result<wire::Capacity> capacity = cuda_limits(spec, formats, tied, options, sequences);
  if (!capacity) return capacity;
  const Status fits =
      fit_cuda_kv(*capacity, spec, formats, options, memory, cuda_fixed_bytes(*capacity, spec, formats));
  return fits.ok() ? capacity : Result<wire::Capacity>(fits);
}

}  // namespace

Result<wire::Capacity> size_cuda(const ModelSpec& spec, const WeightFormats& formats, bool tied,
                                 const config::Options& options, const GpuMemory& memory) {
  for (int sequences = kCudaSequences; sequences > kDefaultSequences && options.scheduler.max_num_seqs == 0;
       sequences /= 2) {
    Result<wire::Capacity> made = try_cuda(spec, formats, tied, options, memory, sequences);
    if (!made) continue;
    const std::int64_t tokens = std::min(kTokensOfASequence, made->max_model_len);
    if (made->kv_blocks >= blocks_for(tokens) * made->max_slots) return made;
  }
  Result<wire::Capacity> made = try_cuda(spec, formats, tied, options, memory, kDefaultSequences);
  if (made) return made;
  return with_format(made.status(),
                     format_sizes(spec, formats, tied, config::Device::cuda, options.quantization),
                     [&](const WeightFormats& other) {
                       return try_cuda(spec, other, tied, options, memory, kDefaultSequences).ok();
                     });
}

Result<wire::Capacity> size_echo(const ModelSpec* spec, const config::Options& options) {
  Result<wire::Capacity> made = common(options, spec != nullptr ? spec->max_positions : kEchoPositions,
                                       spec != nullptr ? spec->vocab : kEchoVocab);
  if (!made) return made;
  size_drafts(*made, options.speculation);
  const std::int64_t blocks = options.device.num_gpu_blocks_override > 0
                                  ? std::int64_t{options.device.num_gpu_blocks_override}
                                  : useful_blocks(*made);
  made->kv_blocks = static_cast<std::int32_t>(std::min(blocks, kEchoBlocks));
  made->max_model_len = static_cast<std::int32_t>(
      std::min<std::int64_t>(made->max_model_len, std::int64_t{made->kv_blocks} * kernels::kBlockTokens));
  return made;
}

}  // namespace troupe::model
