#include "model/module_bytes.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/quantize.h"
#include "model/paddle_copy.h"
#include "model/weight_target.h"

namespace troupe::model {
namespace {

/// All elements of a source, as rows of its inputs.
std::vector<std::byte> read_rows(const WeightSource& source) {
  const std::size_t element = size_of(source.tensor->type);
  const auto lines = static_cast<std::size_t>(source.transposed ? source.inputs : source.outputs);
  const auto line = static_cast<std::size_t>(source.transposed ? source.outputs : source.inputs);
  std::vector<std::byte> bytes(lines * line * element);
  for (std::size_t i = 0; i < lines; ++i) {
    source.tensor->file->read(source.offset() + i * static_cast<std::uint64_t>(source.stride) * element,
                              bytes.data() + i * line * element, line * element);
  }
  if (!source.transposed) return bytes;
  std::vector<std::byte> turned(bytes.size());
  for (std::size_t i = 0; i < lines; ++i) {
    for (std::size_t o = 0; o < line; ++o) {
      std::memcpy(turned.data() + (o * lines + i) * element, bytes.data() + (i * line + o) * element,
                  element);
    }
  }
  return turned;
}

/// The bytes of a module's tensors, one after the other.
class ModuleBytes {
 public:
  ModuleBytes(Cpu& device, const CopyModule& module) : device_(device), module_(module) {}

  Result<std::vector<std::byte>> make() {
    std::uint64_t bytes = 0;
    for (const CopyTensor& tensor : tensors_of(module_)) bytes += tensor.bytes;
    out_.resize(bytes);
    if (!module_.scales_of_channels.empty()) {
      std::memcpy(out_.data(), module_.scales_of_channels.data(), bytes);
      return std::move(out_);
    }
    if (module_.paddle) return make_paddle();
    for (std::size_t i = 0; i < module_.slices.size(); ++i) {
      const WeightSource& slice = *module_.slices[i];
      const std::vector<std::byte> rows = read_rows(slice);
      if (Status s = slice.tensor->file->status(); !s.ok()) return s;
      if (module_.fp8()) {
        const int blocks = (slice.outputs + kernels::kFp8Block - 1) / kernels::kFp8Block;
        device_.pool().for_each(blocks, 1, [&](int begin, int end, int) {
          for (int block = begin; block < end; ++block) quantise_blocks(i, block, rows);
        });
      } else {
        device_.pool().for_each(slice.outputs, 16, [&](int begin, int end, int) {
          for (int row = begin; row < end; ++row) {
            module_.format.quantised() ? quantise(i, row, rows) : copy(i, row, rows);
          }
        });
      }
      if (bad_) {
        return invalid("The tensor '" + slice.name +
                       "' has a NaN or an infinity among its numbers, which cannot be quantised.");
      }
    }
    if (module_.format.quantised() && !module_.fp8()) {
      const std::int64_t shape[] = {module_.outputs(), module_.inputs()};
      std::memcpy(out_.data() + out_.size() - sizeof shape, shape, sizeof shape);
    }
    return std::move(out_);
  }

  const kernels::Wint2Error& error() const { return error_; }

 private:
  Result<std::vector<std::byte>> make_paddle() {
    SliceRows rows;
    for (const WeightSource* slice : module_.slices) {
      rows.push_back(read_rows(*slice));
      if (Status s = slice->tensor->file->status(); !s.ok()) return s;
    }
    error_ = write_paddle_module(device_, module_, rows, out_.data());
    if (!error_.finite) {
      return invalid(
          "The tensor '" + module_.slices.front()->name +
          "', or one that is joined with it, has a NaN or an infinity among its numbers, which cannot be "
          "quantised.");
    }
    return std::move(out_);
  }

  std::size_t first_output(std::size_t slice) const {
    return module_.side_by_side() ? 0 : slice * static_cast<std::size_t>(module_.slices[slice]->outputs);
  }
  std::size_t first_input(std::size_t slice) const {
    return module_.side_by_side() ? slice * static_cast<std::size_t>(module_.slices[slice]->inputs) : 0;
  }

  void copy(std::size_t slice, int row, const std::vector<std::byte>& rows) {
    const std::size_t element = size_of(module_.slices[slice]->tensor->type);
    const auto bytes = static_cast<std::size_t>(module_.slices[slice]->inputs) * element;
    const std::size_t output = first_output(slice) + static_cast<std::size_t>(row);
    const std::size_t at = output * static_cast<std::size_t>(module_.inputs()) + first_input(slice);
    std::memcpy(out_.data() + at * element, rows.data() + static_cast<std::size_t>(row) * bytes, bytes);
  }

  void quantise(std::size_t slice, int row, const std::vector<std::byte>& rows) {
    const WeightSource& source = *module_.slices[slice];
    const DType type = dtype_of(source.tensor->type);
    const auto inputs = static_cast<std::size_t>(source.inputs);
    const std::byte* line = rows.data() + static_cast<std::size_t>(row) * inputs * size_of(type);
    const std::size_t group =
        module_.format.group == 0 ? inputs : static_cast<std::size_t>(module_.format.group);
    const std::size_t output = first_output(slice) + static_cast<std::size_t>(row);
    std::byte* codes = out_.data() + output * static_cast<std::size_t>(module_.words()) * 4;
    std::byte* scales = out_.data() + static_cast<std::size_t>(module_.outputs() * module_.words()) * 4;
    std::size_t scale_at =
        output * static_cast<std::size_t>(module_.scales()) +
        slice * static_cast<std::size_t>(module_.side_by_side() ? module_.scales_of_slice() : 0);
    for (std::size_t from = 0; from < inputs; from += group, ++scale_at) {
      const std::size_t to = std::min(inputs, from + group);
      float largest = 0;
      for (std::size_t i = from; i < to; ++i)
        largest = kernels::larger_magnitude(largest, load_element(line, type, i));
      const float scale = kernels::scale_for(module_.format, largest);
      if (!(scale >= 0)) bad_ = true;
      store_element(scales, module_.format.group == 0 ? DType::f32 : DType::bf16, scale_at, scale);
      for (std::size_t i = from; i < to; ++i) {
        put(codes, first_input(slice) + i,
            kernels::code_of(load_element(line, type, i), scale, kernels::largest_code(module_.format.kind)));
      }
    }
  }

  /// fp8: kFp8Block outputs of a slice. check_slices() has seen that no block has numbers of two slices.
  void quantise_blocks(std::size_t slice, int block, const std::vector<std::byte>& rows) {
    constexpr int kBlock = kernels::kFp8Block;
    const WeightSource& source = *module_.slices[slice];
    const DType type = dtype_of(source.tensor->type);
    const auto inputs = static_cast<std::size_t>(source.inputs),
               all = static_cast<std::size_t>(module_.inputs());
    const auto number = [&](int row, std::size_t input) {
      return load_element(rows.data(), type, static_cast<std::size_t>(row) * inputs + input);
    };
    const int first = block * kBlock, last = std::min(source.outputs, first + kBlock);
    std::byte* scales = out_.data() + static_cast<std::size_t>(module_.outputs()) * all;
    for (std::size_t from = 0; from < inputs; from += kBlock) {
      const std::size_t to = std::min(inputs, from + kBlock);
      float largest = 0;
      for (int row = first; row < last; ++row) {
        for (std::size_t i = from; i < to; ++i) largest = kernels::larger_magnitude(largest, number(row, i));
      }
      const float scale = kernels::scale_for(module_.format, largest);
      if (!(scale >= 0)) bad_ = true;
      const std::size_t scale_row = first_output(slice) / kBlock + static_cast<std::size_t>(block),
                        scale_column = (first_input(slice) + from) / kBlock;
      store_element(scales, DType::f32,
                    scale_row * static_cast<std::size_t>(module_.block_columns()) + scale_column, scale);
      for (int row = first; row < last; ++row) {
        std::byte* codes =
            out_.data() + (first_output(slice) + static_cast<std::size_t>(row)) * all + first_input(slice);
        for (std::size_t i = from; i < to; ++i)
          codes[i] = static_cast<std::byte>(kernels::fp8_code_of(number(row, i), scale));
      }
    }
  }

  void put(std::byte* codes, std::size_t input, int code) const {
    if (module_.format.bits() == 8) {
      codes[input] = static_cast<std::byte>(code + 128);
    } else {
      codes[input / 2] |= static_cast<std::byte>((code + 8) << (input % 2 == 0 ? 0 : 4));
    }
  }

  Cpu& device_;
  const CopyModule& module_;
  std::vector<std::byte> out_;
  std::atomic<bool> bad_{false};
  kernels::Wint2Error error_;
};

}  // namespace

Result<std::vector<std::byte>> module_bytes(Cpu& device, const CopyModule& module,
                                            kernels::Wint2Error& error) {
  ModuleBytes bytes(device, module);
  Result<std::vector<std::byte>> made = bytes.make();
  error += bytes.error();
  return made;
}

}  // namespace troupe::model
