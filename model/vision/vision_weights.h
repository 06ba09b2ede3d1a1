#pragma once
// The weights of the vision tower and of the resampler, and the one list of their tensors: layout, names,
// loading and counting follow from it.
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/buffer.h"
#include "kernels/matrix.h"
#include "model/checkpoint/vision_spec.h"

namespace troupe::model {

/// Vectors of fp32 with a place for each padded column.
struct NormWeights {
  const float* weight = nullptr;
  const float* bias = nullptr;
};

struct BiasedMatrix {
  kernels::Matrix weight{};
  const float* bias = nullptr;
};

struct TowerBlock {
  NormWeights norm1{};
  BiasedMatrix qkv{};  ///< query, key and value rows, one after the other
  BiasedMatrix out{};
  NormWeights norm2{};
  BiasedMatrix fc1{}, fc2{};
};

/// Two linears with a GELU between them, and a LayerNorm.
struct MergeWeights {
  BiasedMatrix fc1{}, fc2{};
  NormWeights norm{};
};

/// Matrices have the activations' type.
struct VisionWeights {
  kernels::Matrix patch{};  ///< from the 588 numbers of a patch
  std::vector<TowerBlock> blocks;
  NormWeights norm{};
  MergeWeights spatial{};   ///< of a frame's four neighbouring patches
  MergeWeights temporal{};  ///< of two frames
  BiasedMatrix project{};   ///< to the decoder's width
  const float* after_norm = nullptr;

  /// Lays all of it out in the arena; `hidden` is the decoder's width.
  static VisionWeights make(const VisionSpec& spec, int hidden, DType dtype, Arena& arena);
};

/// A tensor of the tower or the resampler, as -PT checkpoints name it, and where it goes: a matrix of
/// outputs × inputs, or a vector of `inputs` numbers.
struct VisionTensor {
  std::string name;
  int outputs = 1;
  int inputs = 0;
  kernels::Matrix* matrix = nullptr;
  const float** vector = nullptr;
  bool scales = false;  ///< a vector that multiplies: about 1 in a model that has not learned
};

/// Each of them once, in the order of the computation. Pointers lead into `weights`.
std::vector<VisionTensor> vision_tensors(const VisionSpec& spec, int hidden, VisionWeights& weights);

/// Elements of all of them.
std::int64_t vision_parameters(const VisionSpec& spec, int hidden);

}  // namespace troupe::model
