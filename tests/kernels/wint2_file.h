#pragma once
// Drawn tensors of wint2 as a file has them, packed into a matrix, and decoded a second time from the text of
// kernels/wint2.h, in plain loops.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/device_under_test.h"
#include "kernels/pack.h"

namespace troupe::kernels {

/// The tensors of a matrix, and of its neighbours: some columns before and behind, as gate|up has them.
struct Wint2File {
  Wint2File(int outputs, int inputs, std::uint32_t seed, int before = 0, int behind = 0)
      : columns(before + outputs + behind), first(before), outputs(outputs), inputs(inputs) {
    std::mt19937 random(seed);
    const auto width = std::size_t(columns);
    codes.resize(std::size_t(inputs / 4) * width);
    groups.resize(std::size_t(inputs / 128) * width);
    for (std::uint8_t& b : codes) b = static_cast<std::uint8_t>(random());
    for (std::uint8_t& b : groups) b = static_cast<std::uint8_t>(random());
    for (std::size_t c = 0; c < width; ++c) {
      super_scales.push_back(float_to_bf16(0.001f + 1e-6f * float(random() % 1000)));
      code_scales.push_back(64 + float(random() % 64000) * 0.001f);
      code_zps.push_back((32766 - 255 * code_scales.back()) * (float(random() % 1000) * 0.001f));
      if (c % 3 == 2) {  // a line that falls
        code_zps.back() += 255 * code_scales.back();
        code_scales.back() = -code_scales.back();
      }
    }
  }

  void pack(DeviceUnderTest& device, const Matrix& into, Place place = Place::rows) const {
    const MemoryBytes a(codes.data()), b(groups.data()), c(super_scales.data()), d(code_scales.data()),
        e(code_zps.data());
    const auto skipped = std::uint64_t(first);
    const StoredWint2 source{
        {&b, skipped}, {&c, skipped * 2}, {&d, skipped * 4}, {&e, skipped * 4}, DType::bf16};
    run(device, Pack{.into = into,
                     .file = &a,
                     .offset = skipped,
                     .source_stride = columns,
                     .place = place,
                     .outputs = outputs,
                     .wint2 = &source});
  }

  /// -32 … 31 times the group's scale, 0 … 15.
  int code(int output, int input) const {
    const auto c = std::size_t(first + output), width = std::size_t(columns), i = std::size_t(input);
    const double line = double(codes[i / 4 * width + c]) * double(code_scales[c]) + double(code_zps[c]);
    const int word = int(std::floor(float(line) + 0.5f));
    const std::uint8_t both = groups[i / 128 * width + c];
    const int scale = i % 128 < 64 ? both / 16 : both % 16;
    return ((word >> (9 - 3 * (input % 4))) % 64 - 32) * scale;
  }
  float super_scale(int output) const { return bf16_to_float(super_scales[std::size_t(first + output)]); }
  double weight(int output, int input) const { return code(output, input) * double(super_scale(output)); }

  int columns, first, outputs, inputs;
  std::vector<std::uint8_t> codes, groups;
  std::vector<std::uint16_t> super_scales;
  std::vector<float> code_scales, code_zps;
};

}  // namespace troupe::kernels
