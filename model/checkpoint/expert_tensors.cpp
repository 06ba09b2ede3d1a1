#include "model/checkpoint/expert_tensors.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::model {
namespace {

namespace fs = std::filesystem;

/// The layer of "model.layers.7.mlp.NAME" or "ernie.layers.7.mlp.NAME", and NAME; -1 for other tensors.
std::pair<int, std::string_view> mlp_part(std::string_view name) {
  for (const std::string_view prefix : {"model.layers.", "ernie.layers."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    int layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    name.remove_prefix(static_cast<std::size_t>(end - name.data()));
    constexpr std::string_view kMlp = ".mlp.";
    if (error != std::errc{} || layer < 0 || !name.starts_with(kMlp)) break;
    return {layer, name.substr(kMlp.size())};
  }
  return {-1, {}};
}

/// The width of an MLP by one of its tensors, named as below ".mlp.shared_experts."; 0 if this one does not
/// tell.
std::int64_t mlp_width(std::string_view part, const FileTensor& tensor, int hidden) {
  const bool joined = part.starts_with("up_gate_proj.weight");
  // Of Paddle's quantised linears only the scales show the outputs.
  const bool scales = part == "up_gate_proj.weight_scale" || part == "up_gate_proj.super_scales";
  if (scales && tensor.shape.size() == 1) return tensor.shape[0] / 2;
  if (tensor.shape.size() != 2 || !(joined || part.starts_with("gate_proj.weight"))) return 0;
  // Scales and packed codes have fewer columns, never fewer rows.
  const bool codes = part.ends_with("_packed");
  if (!codes && !part.ends_with(".weight")) return 0;
  const bool transposed = !codes && tensor.shape[0] == hidden;
  return tensor.shape[transposed ? 1 : 0] / (joined ? 2 : 1);
}

}  // namespace

ExpertTensors find_expert_tensors(const Checkpoint& checkpoint, int hidden) {
  constexpr std::string_view kShared = "shared_experts.";
  ExpertTensors found;
  std::set<int> layers;
  int shared_layer = -1;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const auto [layer, part] = mlp_part(name);
    if (layer < 0) continue;
    if (part.starts_with("experts.")) layers.insert(layer);
    if (!part.starts_with(kShared) || (shared_layer >= 0 && shared_layer < layer)) continue;
    const std::int64_t width = mlp_width(part.substr(kShared.size()), tensor, hidden);
    if (width == 0) continue;
    found.shared_width = width;
    shared_layer = layer;
  }
  found.layers.assign(layers.begin(), layers.end());
  return found;
}

Result<ExpertTensors> find_expert_tensors(const fs::path& directory, int hidden) {
  std::error_code error;
  int ranks = 0;
  while (fs::is_directory(directory / ("rank" + std::to_string(ranks)), error)) ++ranks;
  const Result<Checkpoint> checkpoint = Checkpoint::open(ranks > 0 ? directory / "rank0" : directory);
  if (!checkpoint) {
    if (checkpoint.status().code == Code::not_found) return ExpertTensors{};
    return checkpoint.status();
  }
  ExpertTensors found = find_expert_tensors(*checkpoint, hidden);
  found.shared_width *= std::max(ranks, 1);
  return found;
}

}  // namespace troupe::model
