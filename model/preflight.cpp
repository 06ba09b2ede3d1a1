#include "model/preflight.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "model/bytes_text.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/model_files.h"
#include "model/cpu_isa.h"
#include "model/host_memory.h"
#include "model/ranks/part.h"
#include "model/sizing.h"
#include "model/swap/swap_sizing.h"

namespace troupe::model {
namespace {

const char* name(config::Device device) {
  switch (device) {
    case config::Device::automatic: return "auto";
    case config::Device::cpu: return "cpu";
    case config::Device::cuda: return "cuda";
    case config::Device::echo: return "echo";
  }
  return "?";
}

// Checks generation_config.json (sampling defaults, stop ids) now; the engine reads it only after the start.
Status check_generation(const std::string& directory, const ModelSpec& spec) {
  const Result<GenerationConfig> config = read_generation_config(directory);
  if (!config) return config.status();
  for (const TokenId id : config->eos_ids) {
    if (id < spec.vocab) continue;
    return invalid(directory + "/generation_config.json: eos_token_id names " + std::to_string(id) +
                       ", allowed are ids below vocab_size, " + std::to_string(spec.vocab) + ".",
                   "eos_token_id");
  }
  return {};
}

Result<Preflight> preflight_echo(const config::Options& options, Preflight made) {
  if (!options.model.directory.empty()) {
    Result<ModelSpec> spec = read_spec(options.model.directory, options.model.model_config_name);
    if (!spec) return spec.status();
    if (Status s = check_generation(options.model.directory, *spec); !s.ok()) return s;
    made.spec_hash = storage_hash(*spec, options);
    made.spec = std::move(*spec);
  }
  Result<wire::Capacity> capacity = size_echo(made.spec ? &*made.spec : nullptr, options);
  if (!capacity) return capacity.status();
  made.capacity = *capacity;
  if (options.cache.swap_space_gib > 0) {
    made.notes.push_back("--swap-space has no effect: the echo device has no KV memory");
  }
  return made;
}

Status check_speculation(const config::SpeculationOptions& speculation, config::Device device) {
  const auto refused = [](std::string message) {
    return Status{Code::unsupported, "--speculative-config: " + std::move(message), "speculative-config",
                  "not_available_yet"};
  };
  if (device == config::Device::echo && speculation.method == config::DraftMethod::mtp) {
    return refused("the echo device has no draft layer; method \"ngram\" works");
  }
  return {};
}

Status not_available(const config::SplitOptions& split, const std::string& where) {
  return {Code::unsupported,
          std::string("--splitwise-role ") + to_string(split.role) + ": not available " + where,
          "splitwise-role", "not_available_yet"};
}

Status check_split(const config::Options& options, config::Device device) {
  const config::SplitOptions& split = options.split;
  if (split.role == config::SplitRole::mixed) return {};
  if (device == config::Device::echo)
    return not_available(split, "on the echo device, which has no KV memory; --device cpu runs it");
  return {};
}

// "bfloat16 41.2 GiB, wint8 20.9 GiB (in use), wint4 10.9 GiB".
std::string sizes_text(const std::vector<FormatSize>& sizes) {
  std::string text;
  for (const FormatSize& size : sizes) {
    text += (text.empty() ? "" : ", ") + size.name + " " + bytes_text(size.weight_bytes);
    if (size.in_use) text += " (in use)";
  }
  return text;
}

std::string skipped_note(const std::vector<std::string>& skipped) {
  if (skipped.size() == 1) return "1 tensor is not needed and was skipped: '" + skipped.front() + "'";
  return std::to_string(skipped.size()) + " tensors are not needed and were skipped; the first is '" +
         skipped.front() + "'";
}

/// A rank's part of the model, and what it takes.
struct SizedRank {
  ModelSpec part;
  wire::Capacity capacity;

  RankShare share() const {
    const bool spread = part.held_experts.count > 0;
    return {capacity.weight_bytes, part.tokens_held(), spread ? part.experts_held() : 0,
            spread ? part.shared_experts : 0, capacity.kv_blocks};
  }
  /// Whether the rank sets the limits of all, rather than `other`.
  bool has_less_room_than(const SizedRank& other) const {
    const auto room = [](const wire::Capacity& c) { return std::tuple(c.max_slots, c.kv_blocks); };
    if (room(capacity) != room(other.capacity)) return room(capacity) < room(other.capacity);
    return capacity.weight_bytes > other.capacity.weight_bytes;
  }
};

/// The KV blocks of a GPU are an estimate; the worker measures when everything else is loaded.
Result<std::vector<SizedRank>> size_ranks(const ModelFiles& files, const config::Options& options,
                                          const Preflight& made, const CudaProbe& gpu,
                                          const HostMemory& memory) {
  std::vector<SizedRank> sized;
  for (Shard shard = made.shard; shard.rank < shard.ranks; ++shard.rank) {
    Result<ModelSpec> part = part_of(files.spec, shard);
    if (!part) return part.status();
    const Result<wire::Capacity> capacity =
        made.device == config::Device::cuda
            ? size_cuda(*part, files.formats, files.tied, options, {gpu.free, gpu.total})
            : size_cpu(*part, files.formats, files.tied, options, memory);
    if (!capacity) return capacity.status();
    sized.push_back({*std::move(part), *capacity});
  }
  return sized;
}

bool are_equal(const std::vector<RankShare>& shares) {
  return std::ranges::adjacent_find(shares, std::not_equal_to()) == shares.end();
}

std::string ranks_note(const Preflight& made) {
  const std::string count = std::to_string(made.shard.ranks);
  return count + " ranks, each with 1/" + count + " of every layer" +
         (made.spec->experts == 0      ? ""
          : made.shard.expert_parallel ? " and of the experts, which stay whole"
                                       : " and of every expert") +
         "; the memory above is " +
         (are_equal(made.shares)
              ? std::string("each one's")
              : "that of rank " + std::to_string(made.shard.rank) + ", which holds the most");
}

/// A line for each kind of share: "ranks     0, 2: weights 9.50 GiB, 51,712 tokens of the vocabulary, …".
std::string shares_text(const std::vector<RankShare>& shares) {
  std::string text;
  for (std::size_t first = 0; first < shares.size(); ++first) {
    const RankShare& share = shares[first];
    if (std::find(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(first), share) !=
        shares.begin() + static_cast<std::ptrdiff_t>(first)) {
      continue;
    }
    text += "ranks     " + std::to_string(first);
    for (std::size_t rank = first + 1; rank < shares.size(); ++rank) {
      if (shares[rank] == share) text += ", " + std::to_string(rank);
    }
    text += ": weights " + bytes_text(share.weight_bytes) + ", " + std::to_string(share.tokens) +
            " tokens of the vocabulary";
    if (share.experts > 0) {
      text += ", " + counted(share.experts, "expert") + " and " +
              counted(share.shared_experts, "shared expert") + " of a layer";
    }
    text += "; room for " + counted(share.kv_blocks, "KV block") + "\n";
  }
  return text;
}

}  // namespace

namespace {

/// The model's files as far as they are there, each rank's checked.
Result<ModelFiles> open_files(const config::Options& options, const Shard& first) {
  Result<ModelFiles> files = open_model(options.model, first, options.speculation);
  if (!files) return files;
  for (Shard other = first; files->of_rank && ++other.rank < other.ranks;) {
    if (const Result<ModelFiles> its = open_model(options.model, other, options.speculation); !its)
      return its.status();
  }
  if (Status s = check_generation(options.model.directory, files->spec); !s.ok()) return s;
  if (Status s = check_tokenizer_files(options.model); !s.ok()) return s;
  return files;
}

/// `open(first shard)` gives the model's files; the echo device does not call it.
template <class Open>
Result<Preflight> preflight_with(const config::Options& options, const GpuProbes& probes, Open&& open) {
  Preflight made;
  made.shard = {0, options.parallel.tensor_parallel_size, options.parallel.enable_expert_parallel};
  made.device = options.device.device;
  GpusOfRanks gpus;
  if (made.device == config::Device::cuda || made.device == config::Device::automatic) {
    Result<GpusOfRanks> found = find_gpus(options, probes);
    if (!found) return found.status();
    gpus = *std::move(found);
    if (!gpus.absent.ok() && made.device == config::Device::cuda) return gpus.absent;
    made.device = gpus.absent.ok() ? config::Device::cuda : config::Device::cpu;
    if (gpus.absent.ok()) made.gpu = gpus.each;
  }
  if (Status s = check_speculation(options.speculation, made.device); !s.ok()) return s;
  if (Status s = check_split(options, made.device); !s.ok()) return s;
  const bool on_gpu = made.device == config::Device::cuda;
  const CudaProbe& gpu = gpus.each;
  HostMemory memory = on_gpu ? HostMemory(gpu.free) : host_memory();
  const auto workers = static_cast<std::uint64_t>(options.parallel.workers());
  if (!on_gpu) memory.available /= workers;
  if (made.device == config::Device::cpu) {
    if (const Status isa = check_isa(options.device.cpu_isa); !isa.ok()) return isa;
    memory.reserved = kServerBytes / workers;
  }
  made.available_bytes = memory.available;
  made.reserved_bytes = std::min(memory.reserved, memory.available);
  if (made.device == config::Device::echo) {
    Result<Preflight> echo = preflight_echo(options, std::move(made));
    if (echo) echo->sequences_at_full_length = sequences_at_full_length(echo->capacity);
    return echo;
  }
  Result<ModelFiles> files = open(made.shard);
  if (!files) return files.status();
  if (files->spec.vision && made.device == config::Device::cpu) {
    memory.reserved += static_cast<std::uint64_t>(options.media.memory_bytes) / workers;
    made.reserved_bytes = std::min(memory.reserved, memory.available);
  }
  if (Status s = files->choose(made.device, options.quantization); !s.ok()) return s;
  if (on_gpu) {
    if (Status s = check_gpu(files->formats, gpu.capability); !s.ok()) return s;
  }
  if (Status s = check_ranks(*files, made.shard); !s.ok()) return s;
  const Result<std::vector<SizedRank>> sized = size_ranks(*files, options, made, gpu, memory);
  if (!sized) return sized.status();
  const auto least = std::ranges::min_element(*sized, &SizedRank::has_less_room_than);
  made.shard.rank = static_cast<int>(least - sized->begin());
  const ModelSpec& part = least->part;
  made.capacity = least->capacity;
  made.block_bytes =
      (on_gpu ? cuda_kv_shape(part, files->formats) : kv_shape(part, files->formats)).block_bytes();
  if (on_gpu) {
    if (Status s = size_cuda_swap(made.capacity, options, made.block_bytes); !s.ok()) return s;
  }
  if (Status s = check_swap_file(options, made.capacity, made.block_bytes); !s.ok()) return s;
  made.sizes =
      format_sizes(part, files->formats, files->tied, made.device, options.quantization, gpu.capability);
  made.sequences_at_full_length = sequences_at_full_length(made.capacity);
  made.formats = files->formats;
  made.spec_hash = storage_hash(files->spec, options);
  if (gpus.absent.code == Code::unavailable) made.notes.push_back("on the CPU: " + gpus.absent.message);
  if (on_gpu) made.notes.push_back(gpu.name);
  if (on_gpu) made.notes.insert(made.notes.end(), gpus.notes.begin(), gpus.notes.end());
  if (!files->map.skipped.empty()) made.notes.push_back(skipped_note(files->map.skipped));
  made.spec = std::move(files->spec);
  if (!made.shard.alone()) {
    for (const SizedRank& rank : *sized) made.shares.push_back(rank.share());
    made.notes.insert(made.notes.begin(), ranks_note(made));
  }
  return made;
}

}  // namespace

Result<Preflight> preflight(const config::Options& options, const GpuProbes& probes) {
  return preflight_with(options, probes, [&](const Shard& first) { return open_files(options, first); });
}

Result<Preflight> preflight_shape(const ModelSpec& spec, const config::Options& options,
                                  const GpuProbes& probes) {
  if (options.device.device == config::Device::echo)
    return invalid("--device echo holds no model; expected auto, cpu or cuda", "device");
  return preflight_with(options, probes,
                        [&](const Shard&) -> Result<ModelFiles> { return shape_alone(spec, options.model); });
}

Result<std::uint64_t> model_spec_hash(const config::Options& options) {
  const bool echo = options.device.device == config::Device::echo;
  if (echo && options.model.directory.empty()) return std::uint64_t{0};
  Result<ModelSpec> spec = read_spec(options.model.directory, options.model.model_config_name);
  if (!spec) return spec.status();
  return storage_hash(*spec, options);
}

std::string summary(const Preflight& p) {
  const wire::Capacity& c = p.capacity;
  std::string text;
  if (p.spec) {
    text += "model     " + p.spec->architecture + ", " + std::to_string(p.spec->parameters() / 1'000'000) +
            " M parameters" +
            (p.spec->experts > 0
                 ? " (" + std::to_string(p.spec->active_parameters() / 1'000'000) + " M for a token)"
                 : "") +
            ", " + std::to_string(p.spec->layers) + " layers, vocabulary " + std::to_string(p.spec->vocab) +
            "\n";
  }
  text += std::string("device    ") + name(p.device);
  if (p.device != config::Device::echo) text += ", " + to_string(p.formats, *p.spec);
  text += "\nmemory    weights " + bytes_text(c.weight_bytes) + ", KV " + bytes_text(c.kv_bytes) +
          ", activations " + bytes_text(c.arena_bytes) +
          (p.reserved_bytes > 0 ? ", the rest " + bytes_text(p.reserved_bytes) : "") + "; free " +
          bytes_text(p.available_bytes) + "\n";
  if (!p.sizes.empty()) text += "weights   " + sizes_text(p.sizes) + "\n";
  text += "KV cache  " + std::to_string(c.kv_blocks) + " blocks of " + std::to_string(c.block_tokens) +
          " tokens, " + std::to_string(std::int64_t{c.kv_blocks} * c.block_tokens) + " tokens; " +
          std::to_string(p.sequences_at_full_length) + " sequences at full length\n";
  if (c.swap_blocks > 0) {
    text += "swap      " + std::to_string(c.swap_blocks) + " blocks, " +
            bytes_text(static_cast<std::uint64_t>(c.swap_blocks) * p.block_bytes) + "\n";
  }
  text += "limits    max-model-len " + std::to_string(c.max_model_len) + ", max-num-seqs " +
          std::to_string(c.max_slots) + ", max-num-batched-tokens " + std::to_string(c.max_tokens_per_step) +
          "\n";
  if (c.max_drafts > 0) {
    const bool by_layer = p.spec && p.spec->draft_layers > 0;
    text += "drafts    up to " + std::to_string(c.max_drafts) + " tokens behind each sequence's last, " +
            (by_layer ? "by the draft layer" : "from n-grams") + "\n";
  }
  text += shares_text(p.shares);
  for (const std::string& note : p.notes) text += "note      " + note + "\n";
  return text;
}

}  // namespace troupe::model
