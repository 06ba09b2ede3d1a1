#include "model/paddle_copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>

#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "kernels/wint2.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

using kernels::Wint2Error;

constexpr int kOutputsPerClaim = 16;
constexpr float kLargestProduct = 127.0f * 112.0f;  // of an input's code and 16 times a weight's

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

/// Place of input k of output n among the nibbles, low first: four outputs take turns in pieces of 64 inputs,
/// in which 32 lie as 0 16 1 17 … 15 31.
std::size_t w4a8_place(std::size_t inputs, std::size_t n, std::size_t k) {
  const std::size_t within = k % 32 / 16 + k % 16 * 2;
  return n / 4 * 4 * inputs + k / 64 * 256 + n % 4 * 64 + k % 64 / 32 * 32 + within;
}

/// W · H / 128 of each block of the line's inputs.
void rotate(std::vector<float>& line) {
  constexpr std::size_t kBlock = kernels::kHadamardBlock;
  for (std::size_t block = 0; block < line.size(); block += kBlock) {
    for (std::size_t stride = 1; stride < kBlock; stride *= 2) {
      for (std::size_t i = block; i < block + kBlock; ++i) {
        if ((i - block) / stride % 2 != 0) continue;
        const float a = line[i], b = line[i + stride];
        line[i] = a + b;
        line[i + stride] = a - b;
      }
    }
    for (std::size_t i = block; i < block + kBlock; ++i)
      line[i] = bf16_to_float(float_to_bf16(line[i] / static_cast<float>(kBlock)));
  }
}

/// The largest magnitude, or what is not finite.
float largest_of(const std::vector<float>& line) {
  float largest = 0;
  for (const float number : line) largest = kernels::larger_magnitude(largest, number);
  return largest;
}

/// Writes an output of a W4A8 expert. False: a number is not finite.
bool write_w4a8(const CopyModule& module, std::vector<float> line, std::size_t output, std::byte* codes,
                std::byte* scales) {
  if (module.side_by_side()) rotate(line);
  float largest = largest_of(line);
  if (!std::isfinite(largest)) return false;
  if (largest == 0) largest = 1;  // scales are positive numbers; all codes are 0
  store_element(scales, DType::bf16, output, largest * module.input_largest / kLargestProduct);
  const float step = largest / kernels::kLargestInt4;
  for (std::size_t k = 0; k < line.size(); ++k) {
    // Half away from zero, as FastDeploy's tools round.
    const int code = static_cast<int>(
        std::round(std::clamp(line[k] / step, -kernels::kLargestInt4, kernels::kLargestInt4)));
    const std::size_t place = w4a8_place(line.size(), output, k);
    codes[place / 2] |= static_cast<std::byte>((code & 15) << (place % 2 == 0 ? 0 : 4));
  }
  return true;
}

/// False: a number is not finite.
bool write_int8(const std::vector<float>& line, std::size_t output, std::byte* codes, std::byte* scales) {
  float largest = largest_of(line);
  if (!std::isfinite(largest)) return false;
  if (largest == 0) largest = 1;  // scales are positive numbers; all codes are 0
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
  if (module.w4a8()) store_element(tensors[2], DType::f32, 0, 1 / module.input_largest);
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
      } else if (module.w4a8()) {
        some.finite &= write_w4a8(module, line, o, tensors[0], tensors[1]);
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
