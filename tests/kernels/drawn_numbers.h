#pragma once
// The numbers that dummy weights are quantised from, for tests of the quantised ones.
#include <vector>

#include "kernels/device_under_test.h"
#include "kernels/fill_random.h"

namespace troupe::kernels {

/// outputs × inputs numbers of bf16, as FillRandom draws them on the device.
inline std::vector<float> drawn_numbers(DeviceUnderTest& device, int outputs, int inputs,
                                        std::uint64_t seed) {
  const Memory memory(device, matrix_bytes(DType::bf16, outputs, inputs));
  const Matrix matrix{memory.as(), DType::bf16, outputs, inputs};
  run(device, FillRandom{.into = matrix, .outputs = outputs, .seed = seed});
  std::vector<float> numbers;
  const std::byte* bytes = memory.host();
  for (std::size_t i = 0; i < std::size_t(outputs) * std::size_t(inputs); ++i)
    numbers.push_back(load_element(bytes, DType::bf16, i));
  return numbers;
}

}  // namespace troupe::kernels
