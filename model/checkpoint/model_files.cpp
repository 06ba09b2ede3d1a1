#include "model/checkpoint/model_files.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "model/checkpoint/draft_files.h"
#include "model/checkpoint/static_scales.h"
#include "model/ranks/part.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;

Status check_directory(const std::string& directory) {
  std::error_code error;
  if (directory.empty()) return invalid("No model directory is given.", "model");
  if (!fs::exists(directory, error))
    return failure(Code::not_found, "The model directory " + directory + " does not exist.");
  if (!fs::is_directory(directory, error)) {
    return invalid(directory + " is not a directory; --model takes the directory of a checkpoint.", "model");
  }
  if (fs::is_empty(directory, error)) {
    return invalid("The model directory " + directory +
                       " is empty; config.json, model.safetensors and the tokenizer's files belong there.",
                   "model");
  }
  return {};
}

DType compute_type(const config::ModelOptions& options, const ModelFiles& files) {
  switch (options.dtype) {
    case config::DTypeOption::bfloat16: return DType::bf16;
    case config::DTypeOption::float16: return DType::f16;
    case config::DTypeOption::float32: return DType::f32;
    case config::DTypeOption::automatic: break;
  }
  if (files.spec.stored) return *files.spec.stored;
  for (const WeightSource& source : files.map.sources) {
    if (source.weight != Weight::embedding) continue;
    if (source.tensor->type == FileType::f32) return DType::f32;
    if (source.tensor->type == FileType::f16) return DType::f16;
  }
  return DType::bf16;
}

/// A matrix has one format, and so have all matrices of a kind: what the files hold must be that.
Status check_stored(const ModelFiles& files) {
  const WeightLayout layout = WeightLayout::make(files.spec, files.formats, files.tied, {});
  for (const WeightSource& source : files.map.sources) {
    // --lm-head-dtype and the draft layer's own quantization may quantise them while they are loaded.
    const bool draft = source.layer == WeightSource::kDraftLayer;
    if ((source.weight == Weight::lm_head || draft) && !source.stored) continue;
    const kernels::WeightFormat format =
        target_of(layout, files.spec, source.weight, source.layer, source.expert).matrix.format;
    if (!source.stored && !format.quantised()) continue;
    if (!source.stored && files.spec.stored_quantisation->paddle()) continue;  // quantised while it loads
    if (!source.stored) {
      return failure(Code::unsupported, "The tensor '" + source.name +
                                            "' is not quantised, and by quantization_config its kind is " +
                                            to_string(format) + "; all of a kind have to be alike.");
    }
    // A slice of the shared experts may be a group of its own.
    const bool alike =
        source.stored->group == format.group || (format.group == 0 && source.stored->group == source.inputs);
    const bool same_kind = source.stored->fp8 == format.fp8();
    if (!format.quantised() || !same_kind || source.stored->bits != format.bits() || !alike) {
      return failure(
          Code::unsupported,
          "The tensor '" + source.name + "' " +
              (source.stored->fp8 ? "is fp8" : "has " + std::to_string(source.stored->bits) + " bits") +
              ", and by quantization_config its kind is " + to_string(format) +
              "; all of a kind have to be alike.");
    }
  }
  return {};
}

}  // namespace

Result<fs::path> checkpoint_directory(const fs::path& directory, const Shard& shard) {
  std::error_code error;
  int ranks = 0;
  while (fs::is_directory(directory / ("rank" + std::to_string(ranks)), error)) ++ranks;
  if (ranks == 0) return directory;
  const std::string what =
      "The model in " + directory.string() + " is cut for " + std::to_string(ranks) + " ranks";
  if (shard.ranks != ranks) {
    return invalid(what + "; start it with --tensor-parallel-size " + std::to_string(ranks) + ", got " +
                       std::to_string(shard.ranks) + ".",
                   "tensor-parallel-size");
  }
  if (shard.expert_parallel) {
    return invalid(what + ", each with a part of every expert; leave out --enable-expert-parallel.",
                   "enable-expert-parallel");
  }
  return directory / ("rank" + std::to_string(shard.rank));
}

Result<TensorMap> ModelFiles::map_of(const Shard& shard) const {
  if (of_rank) return map;
  return part_of(map, spec, shard);
}

ModelFiles shape_alone(const ModelSpec& spec, const config::ModelOptions& options) {
  ModelFiles files{.spec = spec};
  files.tied = spec.tied.value_or(true);
  files.dtype = compute_type(options, files);
  files.formats = files.dtype;
  return files;
}

Result<ModelFiles> open_model(const config::ModelOptions& options, const Shard& shard,
                              const config::SpeculationOptions& speculation) {
  if (Status s = check_directory(options.directory); !s.ok()) return s;
  Result<ModelSpec> spec = read_spec(options.directory, options.model_config_name);
  if (!spec) return spec.status();
  ModelFiles files = shape_alone(*spec, options);
  if (options.load_choices == config::LoadChoice::checkpoint) {
    const Result<fs::path> directory = checkpoint_directory(options.directory, shard);
    if (!directory) return directory.status();
    Result<Checkpoint> checkpoint = Checkpoint::open(*directory);
    if (!checkpoint) return checkpoint.status();
    files.checkpoint = std::move(*checkpoint);
    files.of_rank = *directory != options.directory;
    const Result<ModelSpec> held = part_of(files.spec, files.of_rank ? shard : Shard{});
    if (!held) return held.status();
    Result<TensorMap> map = map_tensors(*held, *files.checkpoint);
    if (!map) return map.status();
    files.map = std::move(*map);
    files.tied = files.map.tied;
    files.dtype = compute_type(options, files);
    files.formats = files.dtype;
  }
  if (speculation.method == config::DraftMethod::mtp) {
    if (Status s = add_draft_layer(files, options.directory, speculation, shard); !s.ok()) return s;
  }
  return files;
}

Status ModelFiles::choose(config::Device device, const config::QuantizationOptions& options, bool for_copy) {
  Result<WeightFormats> chosen = choose_formats(spec, dtype, device, options);
  if (!chosen) return chosen.status();
  if (chosen->wint2() && checkpoint && !spec.stored_quantisation && !for_copy) {
    return failure(Code::unsupported,
                   "--quantization wint2: loading does not make its codes; troupe quantize MODEL OUT "
                   "--quantization wint2 writes a checkpoint that has them, wint8 and wint4 are made while "
                   "loading.");
  }
  if (chosen->w4a8 && checkpoint && !spec.stored_quantisation && !for_copy) {
    return failure(
        Code::unsupported,
        "--quantization w4a8: loading does not make its static scales; troupe quantize MODEL OUT "
        "--quantization w4a8c8 --calibrate FILE.jsonl writes a checkpoint that has them, wint8 and "
        "wint4 are made while loading.");
  }
  formats = *chosen;
  if (spec.draft_layers > 0) {
    const Result<kernels::WeightFormat> draft = draft_format(*this, device);
    if (!draft) return draft.status();
    formats.draft = *draft;
  }
  if (!spec.stored_quantisation) return {};
  if (Status s = check_stored(*this); !s.ok()) return s;
  return check_static_scales(map);
}

Status check_tokenizer_files(const config::ModelOptions& options) {
  const fs::path place = options.tokenizer.empty() ? options.directory : options.tokenizer;
  std::error_code error;
  if (fs::is_regular_file(place, error)) return {};
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    const fs::path file = place / name;
    if (!fs::is_regular_file(file, error)) continue;
    if (fs::file_size(file, error) == 0) return invalid(file.string() + " is empty.", "tokenizer");
    return {};
  }
  return failure(
      Code::not_found,
      place.string() + " has neither tokenizer.model nor tokenizer.json; --tokenizer names another place.");
}

namespace {

Status check_cut(const ModelFiles& files, const Shard& shard) {
  if (shard.alone()) return {};
  const Result<ModelSpec> part = part_of(files.spec, shard);
  if (!part.ok()) return part.status();
  const Result<TensorMap> map = files.map_of(shard);
  if (!map.ok()) return map.status();

  // Scales that inputs or outputs share have to lie within what a rank holds.
  struct Cut {
    const char* key;
    int width;  // of a rank
    const kernels::WeightFormat& format;
    bool is_input;  // too, beside being an output
  };
  const WeightFormats& formats = files.formats;
  std::vector<Cut> cuts = {{"num_attention_heads * head_dim", part->q_width(), formats.attention, true},
                           {"num_key_value_heads * head_dim", part->kv_width(), formats.attention, false}};
  if (part->moe_layers() < part->layers)
    cuts.push_back({"intermediate_size", part->intermediate, formats.mlp, true});
  if (part->draft_layers > 0) {
    cuts.push_back({"num_attention_heads * head_dim", part->q_width(), formats.draft, true});
    cuts.push_back({"num_key_value_heads * head_dim", part->kv_width(), formats.draft, false});
    cuts.push_back({"intermediate_size", part->intermediate, formats.draft, true});
  }
  if (part->experts > 0 && !shard.expert_parallel) {
    for (const kernels::WeightFormat* format : {&formats.early_experts, &formats.experts})
      cuts.push_back({"moe_intermediate_size", part->expert_intermediate, *format, true});
    if (part->shared_experts > 0 && formats.shared_apart(part->layers - 1) &&
        part->expert_intermediate % kernels::kPanel != 0) {
      return invalid(
          "--tensor-parallel-size " + std::to_string(shard.ranks) + " gives a rank " +
              std::to_string(part->expert_intermediate) +
              " of moe_intermediate_size, which is no multiple of 32, as shared experts of another "
              "format than the others need.",
          "tensor-parallel-size");
    }
    if (part->vision) {
      cuts.push_back({"moe_intermediate_size of vision experts", part->vision->expert_intermediate,
                      formats.experts, true});
    }
  }
  if (formats.w4a8 && !shard.expert_parallel && part->expert_intermediate % kernels::kHadamardBlock != 0) {
    return invalid(
        "--tensor-parallel-size " + std::to_string(shard.ranks) + " gives a rank " +
            std::to_string(part->expert_intermediate) +
            " of moe_intermediate_size, which is no multiple of the 128 that W4A8 rotates together.",
        "tensor-parallel-size");
  }
  cuts.push_back({"vocab_size", token_ranges(files.spec, shard.ranks)[1], formats.lm_head, false});
  for (const Cut& cut : cuts) {
    const int unit = cut.format.kind == kernels::WeightKind::wint2 ? kernels::kWint2Unit
                     : cut.format.fp8()                            ? kernels::kFp8Block
                     : cut.is_input                                ? cut.format.group
                                                                   : 0;
    if (unit == 0 || cut.width % unit == 0) continue;
    return invalid("--tensor-parallel-size " + std::to_string(shard.ranks) + " gives a rank " +
                       std::to_string(cut.width) + " of " + cut.key + ", which is no multiple of the " +
                       std::to_string(unit) + " that share a scale in " + to_string(cut.format) + ".",
                   "tensor-parallel-size");
  }
  return {};
}

/// "1, 2 and 4 would work", or that --enable-expert-parallel would; empty: nothing is known to.
std::string would_work(const ModelFiles& files, const Shard& shard) {
  if (files.of_rank) return {};
  std::vector<std::string> counts;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    if (check_cut(files, {0, ranks, shard.expert_parallel}).ok()) counts.push_back(std::to_string(ranks));
  }
  std::string list;
  for (std::size_t i = 0; i < counts.size(); ++i)
    list += (i == 0 ? "" : i + 1 < counts.size() ? ", " : " and ") + counts[i];
  if (!list.empty()) list += " would work";
  if (!shard.expert_parallel && check_cut(files, {0, shard.ranks, true}).ok())
    list += (list.empty() ? "" : ", and so would ") + std::to_string(shard.ranks) +
            " with --enable-expert-parallel";
  return list;
}

}  // namespace

Status check_ranks(const ModelFiles& files, const Shard& shard) {
  Status refused = check_cut(files, shard);
  if (refused.ok()) return refused;
  const std::string others = would_work(files, shard);
  if (others.empty()) return refused;
  if (refused.message.ends_with('.')) refused.message.pop_back();
  refused.message += "; " + others + ".";
  return refused;
}

}  // namespace troupe::model
