#include "model/copy_modules.h"

#include <map>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "kernels/matrix.h"
#include "kernels/wint2.h"
#include "model/vision/vision_weights.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

using kernels::WeightFormat;

CopyTensor tensor_of(std::string name, FileType type, std::vector<std::int64_t> shape) {
  std::uint64_t bytes = size_of(type);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
  return {std::move(name), to_string(type), std::move(shape), bytes};
}

/// Names the tensors of a -PT checkpoint.
class Names {
 public:
  explicit Names(const ModelSpec& spec) : spec_(spec) {
    VisionWeights unused;  // the list leads into it: only whether it does is looked at
    if (spec.vision) tower_ = vision_tensors(*spec.vision, spec.hidden, unused);
  }

  /// The tensor that the source is a part of, without codes or scales.
  std::string tensor(const WeightSource& source) const {
    switch (source.weight) {
      case Weight::vision: return tower_[static_cast<std::size_t>(source.layer)].name;
      case Weight::vision_router_bias: return weight_name(Weight::router_bias, source.layer, source.expert);
      case Weight::vision_gate: return of_vision(source, Weight::gate);
      case Weight::vision_up: return of_vision(source, Weight::up);
      case Weight::vision_down: return of_vision(source, Weight::down);
      default: break;
    }
    std::string name = weight_name(source.weight, source.layer, source.expert);
    if (source.expert == WeightSource::kNoExpert || source.expert < spec_.experts) return name;
    const std::string one = "experts." + std::to_string(source.expert) + ".";
    return name.replace(name.find(one), one.size(), "shared_experts.");
  }

  bool is_vector(const WeightSource& source) const {
    switch (source.weight) {
      case Weight::final_norm:
      case Weight::input_norm:
      case Weight::draft_embedding_norm:
      case Weight::draft_hidden_norm:
      case Weight::post_norm: return true;
      case Weight::vision: return tower_[static_cast<std::size_t>(source.layer)].matrix == nullptr;
      default: return false;
    }
  }

 private:
  // The experts of both modalities are one list, text first.
  std::string of_vision(const WeightSource& source, Weight part) const {
    return weight_name(part, source.layer, spec_.experts + source.expert);
  }

  const ModelSpec& spec_;
  std::vector<VisionTensor> tower_;
};

/// The name under which -Paddle checkpoints join q, k and v, and gate and up.
std::string joined(std::string name) {
  struct Renamed {
    std::string_view from, to;
  };
  for (const auto& [from, to] : {Renamed{".q_proj.", ".qkv_proj."}, Renamed{".k_proj.", ".qkv_proj."},
                                 Renamed{".v_proj.", ".qkv_proj."}, Renamed{".gate_proj.", ".up_gate_proj."},
                                 Renamed{".up_proj.", ".up_gate_proj."}}) {
    if (const std::size_t at = name.find(from); at != std::string::npos)
      return name.replace(at, from.size(), to);
  }
  return name;
}

/// The largest magnitude that an expert's projection met.
float largest_input(const Calibration& calibration, const WeightSource& source) {
  const LayerMagnitudes& layer = calibration.layers[static_cast<std::size_t>(source.layer)];
  const bool down = source.weight == Weight::down;
  return (down ? layer.down : layer.gate_up)[static_cast<std::size_t>(source.expert)];
}

}  // namespace

std::vector<CopyTensor> tensors_of(const CopyModule& module) {
  if (const auto channels = static_cast<std::int64_t>(module.scales_of_channels.size()); channels > 0)
    return {tensor_of(module.whole_name, FileType::f32, {channels})};
  const WeightSource& first = *module.slices.front();
  if (!module.format.quantised()) {
    const FileType type = first.tensor->type;
    if (module.vector) return {tensor_of(module.whole_name, type, {first.inputs})};
    return {tensor_of(module.whole_name, type, {module.outputs(), module.inputs()})};
  }
  if (module.wint2()) {
    const std::int64_t outputs = module.outputs(), inputs = module.inputs();
    return {tensor_of(module.name + ".quant_weight", FileType::u8, {inputs / kernels::kWint2Inputs, outputs}),
            tensor_of(module.name + ".weight_scale", FileType::u8, {inputs / kernels::kWint2Unit, outputs}),
            tensor_of(module.name + ".super_scales", FileType::bf16, {outputs}),
            tensor_of(module.name + ".code_scale", FileType::f32, {outputs}),
            tensor_of(module.name + ".code_zp", FileType::f32, {outputs})};
  }
  if (module.w4a8()) {
    return {tensor_of(module.name + ".quant_weight", FileType::i8, {module.inputs() / 2, module.outputs()}),
            tensor_of(module.name + ".weight_scale", FileType::bf16, {module.outputs()}),
            tensor_of(module.name + ".activation_scale", FileType::f32, {1})};
  }
  if (module.paddle) {
    return {tensor_of(module.name + ".quant_weight", FileType::i8, {module.outputs(), module.inputs()}),
            tensor_of(module.name + ".weight_scale", FileType::bf16, {module.outputs()})};
  }
  if (module.fp8()) {
    return {tensor_of(module.name + ".weight", FileType::f8_e4m3, {module.outputs(), module.inputs()}),
            tensor_of(module.name + ".weight_scale_inv", FileType::f32,
                      {module.block_rows(), module.block_columns()})};
  }
  return {tensor_of(module.name + ".weight_packed", FileType::i32, {module.outputs(), module.words()}),
          tensor_of(module.name + ".weight_scale", module.format.group == 0 ? FileType::f32 : FileType::bf16,
                    {module.outputs(), module.scales()}),
          tensor_of(module.name + ".weight_shape", FileType::i64, {2})};
}

std::vector<CopyModule> modules_of(const ModelFiles& files, const Calibration* calibration) {
  TROUPE_CHECK(calibration != nullptr || !(files.formats.w4a8 || files.formats.static_kv));
  const WeightLayout layout = WeightLayout::make(files.spec, files.formats, files.tied, {});
  const Names names(files.spec);
  std::vector<CopyModule> modules;
  std::map<std::string, std::size_t> places;
  for (const WeightSource& source : files.map.sources) {
    const kernels::Matrix& matrix =
        target_of(layout, files.spec, source.weight, source.layer, source.expert).matrix;
    const WeightFormat format = matrix.outputs > 0 ? matrix.format : WeightFormat{};
    const bool paddle = files.formats.paddle() && format.quantised();
    const std::string whole = paddle ? joined(names.tensor(source)) : names.tensor(source);
    const auto [at, added] = places.emplace(whole, modules.size());
    if (added) {
      constexpr std::string_view kSuffix = ".weight";
      const std::string name =
          whole.ends_with(kSuffix) ? whole.substr(0, whole.size() - kSuffix.size()) : whole;
      modules.push_back({name, whole, names.is_vector(source), {}, format, paddle});
      const bool expert = source.expert != WeightSource::kNoExpert && source.expert < files.spec.experts;
      if (files.formats.w4a8 && expert) modules.back().input_largest = largest_input(*calibration, source);
    }
    modules[at->second].slices.push_back(&source);
  }
  for (int layer = 0; files.formats.static_kv && layer < files.spec.layers; ++layer) {
    const LayerMagnitudes& found = calibration->layers[static_cast<std::size_t>(layer)];
    for (const auto& [what, magnitudes] :
         {std::pair{"cachek_matmul", &found.keys}, std::pair{"cachev_matmul", &found.values}}) {
      const std::string name = "model.layers." + std::to_string(layer) + ".self_attn." + what;
      modules.push_back(
          {.name = name, .whole_name = name + ".activation_scale", .scales_of_channels = *magnitudes});
    }
  }
  return modules;
}

}  // namespace troupe::model
