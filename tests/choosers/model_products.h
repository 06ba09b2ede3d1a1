#pragma once
// The products of the documented models and of the demo model, whole and of a rank, as choosers see them.
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/product/choose.h"
#include "model/checkpoint/spec.h"

namespace troupe::kernels::cuda::test {

struct Part {
  std::string name;  ///< "ERNIE-4.5-21B-A3B on 4 ranks"
  int ranks = 1;
  model::ModelSpec whole, part;
};
/// The last rank of 1, 2, 4 and 8, with experts cut or whole, as far as they divide a model.
std::vector<Part> parts();

struct ChosenProduct {
  LinearShape shape{};
  LinearChoice choice{};
  bool biased = false;  ///< its tiles end in a bias
  bool int8_x = false;  ///< of a W4A8 expert
};
/// Calls `visit` with every product of a step or of a tower with so many rows, in every format that its
/// weights may have, and what is chosen for it.
void each_product(const Part& part, int rows, const GpuTraits& gpu,
                  const std::function<void(const ChosenProduct&)>& visit);

}  // namespace troupe::kernels::cuda::test
