#include "model/checkpoint/draft_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/json_file.h"
#include "model/checkpoint/expected_tensors.h"
#include "model/ranks/part.h"

namespace troupe::model {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFlag = "--speculative-config: ";
constexpr const char* kInstead = "method \"ngram\" works with every model";

/// A name as files have it: that of the layer's tensors in -Paddle checkpoints too.
bool is_of_draft_layer(const std::string& name) {
  return name.starts_with(kDraftPrefix) || name.starts_with("ernie.mtp_");
}

/// `what`: without a full stop.
Status refused(const std::string& what, Code code = Code::invalid_argument) {
  return {code, kFlag + what + "; " + kInstead + ".", "speculative-config"};
}

/// An error about the files of the layer, with what works instead.
Status refused(const fs::path& directory, Status status) {
  std::string message = std::move(status.message);
  if (message.starts_with(kDoesNotFit)) message.erase(0, kDoesNotFit.size());
  if (message.ends_with('.')) message.pop_back();
  return refused("the draft layer in " + directory.string() + " does not fit the model: " + message,
                 status.code);
}

/// config.json beside the layer's tensors; an empty object if there is none.
Result<nlohmann::json> read_config(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  std::error_code error;
  if (!fs::exists(file, error)) return nlohmann::json::object();
  Result<std::string> text = config::read_small_file(file);
  if (!text) return text.status();
  return config::parse_json_object(*text, file.string());
}

/// The layer works on the model's hidden rows and tokens alone. What the file does not say is not compared.
Status check_config(const nlohmann::json& config, const ModelSpec& spec, const fs::path& directory) {
  struct Key {
    const char* name;
    int wanted;
  };
  for (const auto& [name, wanted] :
       {Key{"hidden_size", spec.hidden}, Key{"intermediate_size", spec.intermediate},
        Key{"num_attention_heads", spec.heads}, Key{"num_key_value_heads", spec.kv_heads},
        Key{"head_dim", spec.head_dim}, Key{"vocab_size", spec.vocab}}) {
    const auto found = config.find(name);
    if (found == config.end() || !found->is_number_integer() || *found == wanted) continue;
    return refused((directory / "config.json").string() + " is of another model: " + name + " is " +
                   found->dump() + ", the model's is " + std::to_string(wanted));
  }
  return {};
}

Result<TensorMap> map_own(const ModelFiles& files, const Shard& shard) {
  const Result<ModelSpec> held = part_of(files.spec, files.of_rank ? shard : Shard{});
  if (!held) return held.status();
  return map_draft_tensors(*held, *files.checkpoint);
}

/// Opens the layer's own directory.
Result<TensorMap> map_other(ModelFiles& files, const fs::path& directory, const Shard& shard) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    return refused("\"model\" is " + directory.string() + ", which is no directory", Code::not_found);
  }
  const Result<fs::path> place = checkpoint_directory(directory, shard);
  if (!place) return place.status();
  const bool of_rank = *place != directory;
  if (of_rank && !files.of_rank) {
    return refused("the draft layer in " + directory.string() + " is cut for " + std::to_string(shard.ranks) +
                   " ranks, and the model is not");
  }
  Result<Checkpoint> opened = Checkpoint::open(*place);
  if (!opened) return opened.status();
  files.draft_checkpoint = *std::move(opened);
  if (!has_draft_layer(*files.draft_checkpoint)) {
    return refused(directory.string() +
                   " has no tensor of a draft layer, such as 'model.mtp_linear_proj.0.weight'");
  }
  const Result<nlohmann::json> config = read_config(directory);
  if (!config) return config.status();
  Result<ModelSpec> spec = part_of(files.spec, of_rank ? shard : Shard{});
  if (!spec) return spec.status();
  spec->stored_quantisation.reset();
  if (const auto stored = config->find("quantization_config");
      stored != config->end() && stored->is_object()) {
    Result<StoredQuantisation> parsed =
        StoredQuantisation::parse(stored->dump(), (directory / "config.json").string());
    if (!parsed) return parsed.status();
    spec->stored_quantisation = *std::move(parsed);
  }
  Result<TensorMap> map = map_draft_tensors(*spec, *files.draft_checkpoint);
  if (!map) return refused(directory, map.status());
  if (Status s = check_config(*config, files.spec, directory); !s.ok()) return s;
  return files.of_rank && !of_rank ? part_of(*map, files.spec, shard) : map;
}

}  // namespace

bool has_draft_layer(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.tensors(),
                             [](const auto& tensor) { return is_of_draft_layer(tensor.first); });
}

Status add_draft_layer(ModelFiles& files, const fs::path& directory,
                       const config::SpeculationOptions& speculation, const Shard& shard) {
  if (files.spec.vision) {
    return refused("method \"mtp\" needs a draft layer, and vision-language models, such as " +
                       directory.string() + ", have none",
                   Code::unsupported);
  }
  if (files.spec.nextn_layers > 1) {
    return refused(directory.string() + "/config.json: num_nextn_predict_layers is " +
                       std::to_string(files.spec.nextn_layers) + ", only 1 is offered",
                   Code::unsupported);
  }
  files.spec.draft_layers = 1;  // also for part_of(): the block is cut as a dense layer is
  files.draft_quantization = speculation.quantization;
  if (!files.checkpoint) {
    if (files.spec.nextn_layers == 1) return {};
    return refused("method \"mtp\" needs a draft layer, and " + directory.string() +
                   "/config.json says that the model has none, num_nextn_predict_layers " +
                   std::to_string(files.spec.nextn_layers));
  }
  const bool own = speculation.draft_model.empty();
  if (own && !has_draft_layer(*files.checkpoint)) {
    return refused("method \"mtp\" needs a draft layer, and " + directory.string() +
                   " has no tensor of one, such as 'model.mtp_linear_proj.0.weight'; \"model\" may name a "
                   "directory that has them");
  }
  Result<TensorMap> map = own ? map_own(files, shard) : map_other(files, speculation.draft_model, shard);
  if (!map) {
    const bool worded = map.status().message.starts_with(kFlag);
    return worded ? map.status() : refused(own ? directory : fs::path(speculation.draft_model), map.status());
  }
  std::ranges::move(map->sources, std::back_inserter(files.map.sources));
  if (own) std::erase_if(files.map.skipped, is_of_draft_layer);
  return {};
}

Result<kernels::WeightFormat> draft_format(const ModelFiles& files, config::Device device) {
  const std::string& asked = files.draft_quantization;
  for (const WeightSource& source : files.map.sources) {
    if (source.layer != WeightSource::kDraftLayer || !source.stored) continue;
    if (!asked.empty()) {
      return refused("\"quantization\" is \"" + asked.substr(0, 80) +
                     "\", but the draft layer is quantised already, leave the field out");
    }
    const StoredFormat& stored = *source.stored;
    if (stored.fp8) return kernels::WeightFormat{kernels::WeightKind::fp8, files.dtype};
    return kernels::WeightFormat{stored.bits == 8 ? kernels::WeightKind::int8 : kernels::WeightKind::int4,
                                 files.dtype, stored.group};
  }
  if (asked.empty()) {
    return files.spec.stored_quantisation ? kernels::WeightFormat(files.dtype) : files.formats.attention;
  }
  ModelSpec dense = files.spec;  // the layer is: wint4 means 4 bits
  dense.experts = 0;
  dense.stored_quantisation.reset();
  const Result<WeightFormats> chosen = choose_formats(dense, files.dtype, device, {.method = asked});
  if (chosen) return chosen->attention;
  std::string message = chosen.status().message;
  constexpr std::string_view kModels = "--quantization";
  if (message.starts_with(kModels)) message.replace(0, kModels.size(), "\"quantization\" of the draft layer");
  return Status{chosen.status().code, kFlag + message, "speculative-config"};
}

}  // namespace troupe::model
