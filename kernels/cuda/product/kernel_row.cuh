#pragma once
// The launcher of all ways of a product. Each way has a table of its compiled kernels; its plan, which the
// chooser made, says which row is launched, and launch_size.h with how many blocks. Kernels that prepare x or
// end a product are in no table: each is the only one of its step.
#include <algorithm>
#include <array>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product/compiled.h"
#include "kernels/cuda/product/launch_size.h"

namespace troupe::kernels::cuda {

/// A compiled kernel, and what its launches have in common.
template <class... Parameters>
struct KernelRow {
  void (*kernel)(Parameters...) = nullptr;  ///< null: not compiled, so never chosen
  int threads = 0;                          ///< of a block; 0: LaunchSize says
  int shared_bytes = 0;                     ///< dynamic, of a block; 0: LaunchSize says
};

/// The table {row(0), row(1), …}; each argument is a constant.
template <std::size_t kCount, class Row>
constexpr auto make_table(Row row) {
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array{row(std::integral_constant<int, static_cast<int>(kIndex)>())...};
  }
  (std::make_index_sequence<kCount>());
}

/// The index of `named`, which a plan chose, in the list whose order a table has.
template <class Named, std::size_t kCount>
std::size_t index_of(const Named (&list)[kCount], const Named& named) {
  const auto index = static_cast<std::size_t>(std::find(std::begin(list), std::end(list), named) - list);
  TROUPE_CHECK(index < kCount);
  return index;
}

template <class... Parameters>
void launch(Cuda& device, const KernelRow<Parameters...>& row, const LaunchSize& size, const Overlap& overlap,
            const std::type_identity_t<Parameters>&... arguments) {
  TROUPE_CHECK(row.kernel != nullptr);
  const troupe::cuda::Shape shape{
      .grid =
          dim3(static_cast<unsigned>(size.x), static_cast<unsigned>(size.y), static_cast<unsigned>(size.z)),
      .block = dim3(static_cast<unsigned>(row.threads != 0 ? row.threads : size.threads)),
      .shared_bytes = static_cast<std::size_t>(row.shared_bytes != 0 ? row.shared_bytes : size.shared_bytes),
      .cluster = size.cluster,
      .overlap = overlap};
  if (shape.shared_bytes > 0) troupe::cuda::allow_shared(row.kernel, shape.shared_bytes);
  troupe::cuda::launch(device, row.kernel, shape, arguments...);
}

/// The rows of tables that have a kernel.
template <class... Tables>
std::vector<CompiledKernel> compiled_of(const Tables&... tables) {
  std::vector<CompiledKernel> kernels;
  const auto add = [&](const auto& row) {
    if (row.kernel != nullptr)
      kernels.push_back({reinterpret_cast<const void*>(row.kernel), row.threads, row.shared_bytes});
  };
  (std::for_each(std::begin(tables), std::end(tables), add), ...);
  return kernels;
}

}  // namespace troupe::kernels::cuda
