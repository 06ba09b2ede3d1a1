#include "model/vision/vision_weights.h"

#include <utility>

#include "base/patch_grid.h"

namespace troupe::model {
namespace {

class TensorList {
 public:
  TensorList(const VisionSpec& spec, int hidden) : spec_(spec), hidden_(hidden) {}

  std::vector<VisionTensor> list(VisionWeights& w) {
    const std::string tower = "vision_model.", resampler = "model.resampler_model.";
    w.blocks.resize(static_cast<std::size_t>(spec_.depth));
    matrix(tower + "patch_embed.proj", w.patch, spec_.width, kPatchBytes);
    for (int i = 0; i < spec_.depth; ++i) {
      const std::string at = tower + "blocks." + std::to_string(i) + ".";
      TowerBlock& block = w.blocks[static_cast<std::size_t>(i)];
      norm(at + "norm1", block.norm1, spec_.width);
      biased(at + "attn.qkv", block.qkv, 3 * spec_.width, spec_.width);
      biased(at + "attn.proj", block.out, spec_.width, spec_.width);
      norm(at + "norm2", block.norm2, spec_.width);
      biased(at + "mlp.fc1", block.fc1, spec_.intermediate, spec_.width);
      biased(at + "mlp.fc2", block.fc2, spec_.width, spec_.intermediate);
    }
    norm(tower + "ln", w.norm, spec_.width);
    merge(resampler + "spatial_linear.", w.spatial, spec_.merged_width());
    merge(resampler + "temporal_linear.", w.temporal, kMergeFrames * spec_.merged_width());
    biased(resampler + "mlp", w.project, hidden_, spec_.merged_width());
    vector(resampler + "after_norm.weight", w.after_norm, hidden_, true);
    return std::move(tensors_);
  }

 private:
  void matrix(const std::string& module, kernels::Matrix& to, int outputs, int inputs) {
    tensors_.push_back({.name = module + ".weight", .outputs = outputs, .inputs = inputs, .matrix = &to});
  }
  void vector(std::string name, const float*& to, int size, bool scales) {
    tensors_.push_back({.name = std::move(name), .inputs = size, .vector = &to, .scales = scales});
  }
  void biased(const std::string& module, BiasedMatrix& to, int outputs, int inputs) {
    matrix(module, to.weight, outputs, inputs);
    vector(module + ".bias", to.bias, outputs, false);
  }
  void norm(const std::string& module, NormWeights& to, int size) {
    vector(module + ".weight", to.weight, size, true);
    vector(module + ".bias", to.bias, size, false);
  }
  // The numbers are the modules' places in the checkpoints' sequential layers.
  void merge(const std::string& at, MergeWeights& to, int inputs) {
    biased(at + "0", to.fc1, spec_.merged_width(), inputs);
    biased(at + "2", to.fc2, spec_.merged_width(), spec_.merged_width());
    norm(at + "3", to.norm, spec_.merged_width());
  }

  const VisionSpec& spec_;
  const int hidden_;
  std::vector<VisionTensor> tensors_;
};

}  // namespace

std::vector<VisionTensor> vision_tensors(const VisionSpec& spec, int hidden, VisionWeights& weights) {
  return TensorList(spec, hidden).list(weights);
}

std::int64_t vision_parameters(const VisionSpec& spec, int hidden) {
  VisionWeights none;
  std::int64_t count = 0;
  for (const VisionTensor& t : vision_tensors(spec, hidden, none))
    count += std::int64_t{t.outputs} * t.inputs;
  return count;
}

VisionWeights VisionWeights::make(const VisionSpec& spec, int hidden, DType dtype, Arena& arena) {
  VisionWeights made;
  for (const VisionTensor& t : vision_tensors(spec, hidden, made)) {
    if (t.matrix != nullptr) {
      *t.matrix = {arena.take_bytes(kernels::matrix_bytes(dtype, t.outputs, t.inputs)), dtype, t.outputs,
                   t.inputs};
    } else {
      *t.vector = arena.take<float>(static_cast<std::size_t>(kernels::padded(t.inputs)));
    }
  }
  return made;
}

}  // namespace troupe::model
