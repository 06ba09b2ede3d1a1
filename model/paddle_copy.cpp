#include "model/paddle_copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "kernels/quantize.h"
#include "kernels/wint2.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

using kernels::Wint2Error;

constexpr int kOutputsPerClaim = 16;

/// The numbers of one output of the module, from all slices that have some.
std::vector<float> line_of(const CopyModule& module, const SliceRows& rows, std::int64_t output) {
  std::vector<float> line;
  line.reserve(static_cast<std::size_t>(module.inputs()));
  for (std::size_t s = 0; s < module.slices.size(); ++s) {
    const WeightSource& slice = *module.slices[s];
    if (!module.side_by_side() && output >= slice.outputs) {
      output -= slice.outputs;
      continue;
    }
    const auto inputs = static_cast<std::size_t>(slice.inputs);
    for (std::size_t i = 0; i < inputs; ++i) {
      line.push_back(load_element(rows[s].data(), dtype_of(slice.tensor->type),
                                  static_cast<std::size_t>(output) * inputs + i));
    }
    if (!module.side_by_side()) break;
  }
  return line;
}

/// Byte of input k of output n, of K inputs: two outputs take turns in pieces of 64 inputs, in which 16 lie
/// as 0 8 1 9 … 7 15 (checkpoint/paddle_codes.h reads it).
std::size_t wint8_place(std::size_t inputs, std::size_t n, std::size_t k) {
  const std::size_t p = k / 16 * 16 + 2 * (k % 8) + k % 16 / 8;
  return n / 2 * 2 * inputs + p / 64 * 128 + n % 2 * 64 + p % 64;
}

/// False: a number is not finite.
bool write_int8(const std::vector<float>& line, std::size_t output, std::byte* codes, std::byte* scales) {
  float largest = 0;
  for (const float number : line) largest = kernels::larger_magnitude(largest, number);
  if (!std::isfinite(largest)) return false;
  store_element(scales, DType::bf16, output, largest / kernels::kLargestInt8);
  const float scale = load_element(scales, DType::bf16, output);  // rounded
  for (std::size_t k = 0; k < line.size(); ++k) {
    codes[wint8_place(line.size(), output, k)] =
        static_cast<std::byte>(kernels::code_of(line[k], scale, kernels::kLargestInt8) + 128);
  }
  return true;
}

}  // namespace

Wint2Error write_paddle_module(Cpu& device, const CopyModule& module, const SliceRows& rows, std::byte* out) {
  std::vector<std::byte*> tensors;
  for (const CopyTensor& tensor : tensors_of(module)) {
    tensors.push_back(out);
    out += tensor.bytes;
  }
  const auto outputs = static_cast<int>(module.outputs());
  Wint2Error error;
  std::mutex mutex;
  device.pool().for_each(outputs, kOutputsPerClaim, [&](int begin, int end, int) {
    Wint2Error some;
    for (int output = begin; output < end; ++output) {
      const std::vector<float> line = line_of(module, rows, output);
      const auto o = static_cast<std::size_t>(output);
      if (module.wint2()) {
        some += kernels::encode_wint2(
            device.isa(), line.data(), static_cast<int>(line.size()),
            {reinterpret_cast<std::uint8_t*>(tensors[0]), reinterpret_cast<std::uint8_t*>(tensors[1]),
             reinterpret_cast<std::uint16_t*>(tensors[2]), reinterpret_cast<float*>(tensors[3]),
             reinterpret_cast<float*>(tensors[4]), static_cast<std::size_t>(outputs)},
            o);
      } else {
        some.finite &= write_int8(line, o, tensors[0], tensors[1]);
      }
    }
    const std::scoped_lock lock(mutex);
    error += some;
  });
  return error;
}

}  // namespace troupe::model
