#include "model/preflight.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gpu/cuda_probe.h"
#include "gpu/nccl.h"
#include "model/bytes_text.h"
#include "model/checkpoint/generation_config.h"
#include "model/checkpoint/model_files.h"
#include "model/host_memory.h"
#include "model/ranks/exchange_way.h"
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

/// What the ranks find on their GPUs.
struct GpusOfRanks {
  CudaProbe each;  ///< with the least free memory of all, for one rank
  ExchangeWay way;
  std::string note;  ///< of the way; empty: there is nothing to say
};

/// A note that names NCCL's version.
Result<std::string> find_nccl(const std::string& why) {
  const Result<std::string> version = nccl_version();
  if (version.ok()) return "ranks exchange over NCCL " + *version + ", because " + why;
  return failure(Code::unsupported, "Ranks have to exchange over NCCL, because " + why + "; " +
                                        version.status().message + ". LD_LIBRARY_PATH may name its folder.");
}

/// The GPUs have to be alike, or all ranks wait for the slowest.
Result<GpusOfRanks> probe_gpus(const config::ParallelOptions& parallel) {
  const int ranks = parallel.tensor_parallel_size, sharing = parallel.ranks_per_gpu, gpus = gpus_of(parallel);
  std::vector<CudaProbe> probes;
  GpusOfRanks found;
  for (int ordinal = 0; ordinal < gpus; ++ordinal) {
    Result<CudaProbe> gpu = probe_cuda(ordinal);
    if (!gpu.ok()) return gpu.status();
    if (gpus > gpu->devices) {
      return invalid(
          "--tensor-parallel-size: got " + std::to_string(ranks) + ", expected at most " +
              std::to_string(gpu->devices * sharing) + ", " +
              (sharing > 1 ? "the visible GPUs times --ranks-per-gpu" : "the number of visible GPUs") +
              " (CUDA_VISIBLE_DEVICES)",
          "tensor-parallel-size");
    }
    if (ordinal == 0) found.each = *gpu;
    if (gpu->name != found.each.name) {
      return invalid("--tensor-parallel-size: GPU 0 is " + found.each.name + " and GPU " +
                         std::to_string(ordinal) + " is " + gpu->name +
                         ", expected GPUs of one kind; CUDA_VISIBLE_DEVICES chooses them",
                     "tensor-parallel-size");
    }
    found.each.free = std::min(found.each.free, gpu->free);
    probes.push_back(*std::move(gpu));
  }
  if (ranks > 1) {
    found.way = choose_exchange(parallel, [&](int from, int to) {
      return (probes[static_cast<std::size_t>(from)].reaches >> to & 1) != 0;
    });
  }
  found.each.free /= static_cast<std::uint64_t>(std::min(sharing, ranks));
  if (!found.way.nccl) return found;
  const Result<std::string> note = find_nccl(found.way.why);
  if (!note.ok()) return note.status();
  found.note = *note;
  found.each.free -= std::min(found.each.free, kNcclBytes);
  return found;
}

std::string ranks_note(const Preflight& made) {
  const std::string count = std::to_string(made.shard.ranks);
  return count + " ranks, each with 1/" + count + " of every layer" +
         (made.spec->experts == 0      ? ""
          : made.shard.expert_parallel ? " and of the experts, which stay whole"
                                       : " and of every expert") +
         "; the memory above is each one's";
}

}  // namespace

Result<Preflight> preflight(const config::Options& options) {
  Preflight made;
  made.shard = {0, options.parallel.tensor_parallel_size, options.parallel.enable_expert_parallel};
  made.device = options.device.device;
  Result<GpusOfRanks> gpus = GpusOfRanks{};
  if (made.device == config::Device::cuda || made.device == config::Device::automatic) {
    gpus = probe_gpus(options.parallel);
    if (made.device == config::Device::automatic) {
      made.device = gpus.ok() ? config::Device::cuda : config::Device::cpu;
    }
  }
  const bool on_gpu = made.device == config::Device::cuda;
  if (on_gpu && !gpus.ok()) return gpus.status();
  const CudaProbe gpu = gpus.ok() ? gpus->each : CudaProbe{};
  made.available_bytes =
      on_gpu ? gpu.free : available_memory() / static_cast<std::uint64_t>(made.shard.ranks);
  if (made.device == config::Device::echo) {
    Result<Preflight> echo = preflight_echo(options, std::move(made));
    if (echo) echo->sequences_at_full_length = sequences_at_full_length(echo->capacity);
    return echo;
  }
  Result<ModelFiles> files = open_model(options.model, made.shard);
  if (!files) return files.status();
  for (Shard other = made.shard; files->of_rank && ++other.rank < other.ranks;) {
    if (const Result<ModelFiles> its = open_model(options.model, other); !its) return its.status();
  }
  if (Status s = check_generation(options.model.directory, files->spec); !s.ok()) return s;
  if (Status s = check_tokenizer_files(options.model); !s.ok()) return s;
  if (Status s = files->choose(made.device, options.quantization); !s.ok()) return s;
  if (on_gpu) {
    if (Status s = check_gpu(files->formats, gpu.capability); !s.ok()) return s;
  }
  if (Status s = check_ranks(*files, made.shard); !s.ok()) return s;
  const ModelSpec part = *part_of(files->spec, made.shard);
  // The KV blocks of a GPU are an estimate; the worker measures when everything else is loaded.
  Result<wire::Capacity> capacity =
      on_gpu ? size_cuda(part, files->formats, files->tied, options, {gpu.free, gpu.total})
             : size_cpu(part, files->formats, files->tied, options, made.available_bytes);
  if (!capacity) return capacity.status();
  const std::uint64_t block_bytes = kv_shape(part, files->formats).block_bytes();
  if (on_gpu) {
    if (Status s = size_cuda_swap(*capacity, options, block_bytes); !s.ok()) return s;
  }
  if (Status s = check_swap_file(options, *capacity, block_bytes); !s.ok()) return s;
  made.block_bytes = block_bytes;
  made.sizes =
      format_sizes(part, files->formats, files->tied, made.device, options.quantization, gpu.capability);
  made.capacity = *capacity;
  made.sequences_at_full_length = sequences_at_full_length(made.capacity);
  made.formats = files->formats;
  made.spec_hash = storage_hash(files->spec, options);
  if (on_gpu) made.notes.push_back(gpu.name);
  if (on_gpu && !gpus->note.empty()) made.notes.push_back(gpus->note);
  if (!files->map.skipped.empty()) made.notes.push_back(skipped_note(files->map.skipped));
  made.spec = std::move(files->spec);
  if (!made.shard.alone()) made.notes.insert(made.notes.begin(), ranks_note(made));
  return made;
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
          ", activations " + bytes_text(c.arena_bytes) + "; free " + bytes_text(p.available_bytes) + "\n";
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
  for (const std::string& note : p.notes) text += "note      " + note + "\n";
  return text;
}

}  // namespace troupe::model
