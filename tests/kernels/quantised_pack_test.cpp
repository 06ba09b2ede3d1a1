// Codes and scales in the matrices of the Cpu, to the bit.
#include <cstring>

#include "kernels/embed.h"
#include "kernels/fill_random.h"
#include "kernels/quantised_weights.h"

namespace troupe::kernels {
namespace {

class QuantisedPack : public testing::TestWithParam<Isa> {
 protected:
  DeviceUnderTest device_{std::make_unique<Cpu>(CpuOptions{.threads = 3, .pin = false, .isa = GetParam()})};
};
INSTANTIATE_TEST_SUITE_P(On, QuantisedPack, testing::ValuesIn(usable_isas()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

int placed(Place place, int first, int row) {
  if (place == Place::rows) return first + row;
  return row / 32 * 64 + (place == Place::up ? 32 : 0) + row % 32;
}

void expect_codes(const Matrix& matrix, int output, const std::vector<float>& numbers,
                  const std::string& what) {
  const Packed packed(matrix);
  const Codes expected = quantised(matrix.format, numbers);
  for (std::size_t g = 0; g < expected.scales.size(); ++g) {
    const float got = packed.scale(output, int(g));
    if (std::isnan(expected.scales[g])) {
      ASSERT_TRUE(std::isnan(got)) << what;
    } else {
      ASSERT_EQ(got, expected.scales[g]) << what << " output " << output << " group " << g;
    }
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (std::isnan(expected.scales[std::size_t(packed.group_of(int(i)))])) continue;
    ASSERT_EQ(packed.code(output, int(i)), expected.codes[i])
        << what << " output " << output << " input " << i;
  }
}

/// A source tensor of any dtype and orientation, with `gap` elements between its lines.
struct Source {
  Source(DType dtype, bool transposed, int outputs, int inputs, int gap, const std::vector<float>& values)
      : stride((transposed ? outputs : inputs) + gap) {
    const int lines = transposed ? inputs : outputs;
    bytes.resize(std::size_t(lines) * std::size_t(stride) * size_of(dtype), std::byte{0x7f});
    for (int o = 0; o < outputs; ++o) {
      for (int i = 0; i < inputs; ++i) {
        const int at = transposed ? i * stride + o : o * stride + i;
        store_element(bytes.data(), dtype, std::size_t(at), values[std::size_t(o * inputs + i)]);
      }
    }
    bytes.resize(bytes.size() - std::size_t(gap) * size_of(dtype));  // nothing lies behind the last element
    bytes.shrink_to_fit();
  }
  int stride;
  std::vector<std::byte> bytes;
};

TEST_P(QuantisedPack, EverySourceAndPlace) {
  for (const WeightFormat& format : quantised_formats(DType::bf16)) {
    for (const auto& [outputs, inputs] :
         std::vector<std::array<int, 2>>{{1, 33}, {70, 576}, {33, 1000}, {64, 129}}) {
      const auto values = random_floats(std::size_t(outputs * inputs), 7, 0.02f);
      for (const DType dtype : all_dtypes()) {
        for (const bool transposed : {false, true}) {
          for (const int gap : {0, 5}) {
            const Source source(dtype, transposed, outputs, inputs, gap, values);
            std::vector<std::byte> file(3);  // an odd distance in the file
            file.insert(file.end(), source.bytes.begin(), source.bytes.end());
            const MemoryBytes bytes(file.data());
            for (const bool from_file : {false, true}) {
              for (const Place place : {Place::rows, Place::gate, Place::up}) {
                const int first = place == Place::rows ? 5 : 0;
                const int all = place == Place::rows ? outputs + first + 1 : gate_up_outputs(outputs);
                const Memory memory(device_, matrix_bytes(format, all, inputs));
                const Matrix matrix{memory.as(), format, all, inputs};
                Pack pack{.into = matrix,
                          .source_dtype = dtype,
                          .transposed = transposed,
                          .source_stride = gap == 0 ? 0 : source.stride,
                          .place = place,
                          .first = first,
                          .outputs = outputs};
                if (from_file) {
                  pack.file = &bytes;
                  pack.offset = 3;
                } else {
                  pack.source = source.bytes.data();
                }
                run(device_, pack);
                const std::string what = to_string(format) + " of " + to_string(dtype) +
                                         (transposed ? " transposed" : "") +
                                         (from_file ? " file" : " memory");
                for (int o = 0; o < outputs; ++o) {
                  std::vector<float> numbers;
                  for (int i = 0; i < inputs; ++i)
                    numbers.push_back(rounded_to(dtype, values[std::size_t(o * inputs + i)]));
                  expect_codes(matrix, placed(place, first, o), numbers, what);
                  if (HasFatalFailure()) return;
                }
                if (place == Place::rows) {
                  for (const int other : {0, 4, outputs + 5}) ASSERT_EQ(Packed(matrix).scale(other, 0), 0);
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(QuantisedPack, TransposedTensorsThatAreReadInParts) {
  constexpr int kOutputs = 1100, kInputs = 8200;  // 18 MB, more than is read at a time
  const auto values = random_floats(std::size_t{kOutputs} * kInputs, 3, 0.05f);
  std::vector<std::uint16_t> source(values.size());
  for (int o = 0; o < kOutputs; ++o) {
    for (int i = 0; i < kInputs; ++i)
      source[std::size_t(i) * kOutputs + std::size_t(o)] =
          float_to_bf16(values[std::size_t(o) * kInputs + std::size_t(i)]);
  }
  const MemoryBytes file(source.data());
  const WeightFormat format{WeightKind::int8, DType::bf16};
  const Memory memory(device_, matrix_bytes(format, kOutputs, kInputs));
  const Matrix matrix{memory.as(), format, kOutputs, kInputs};
  run(device_, Pack{.into = matrix, .file = &file, .transposed = true, .outputs = kOutputs});
  for (const int o : {0, 31, 500, 959, 960, 991, 992, 1023, 1024, 1099}) {
    std::vector<float> numbers;
    for (int i = 0; i < kInputs; ++i)
      numbers.push_back(rounded_to(DType::bf16, values[std::size_t(o) * kInputs + std::size_t(i)]));
    expect_codes(matrix, o, numbers, "in parts");
    if (HasFatalFailure()) return;
  }
  EXPECT_LT(device_.cpu().scratch_bytes(), std::size_t{24} << 20);
}

/// Checks inputs [first, …) of `whole` against all of `part`.
void expect_part(const Matrix& whole, const Matrix& part, int first, int output, const std::string& what) {
  const Packed of_whole(whole), of_part(part);
  for (int i = 0; i < part.inputs; ++i) {
    ASSERT_EQ(of_part.code(output, i), of_whole.code(output, first + i)) << what << " input " << i;
    ASSERT_EQ(of_part.scale(output, of_part.group_of(i)),
              of_whole.scale(output, of_whole.group_of(first + i)))
        << what << " input " << i;
  }
}

// A rank's part of a row has the scale of the whole row, so that ranks have the codes of one.
TEST_P(QuantisedPack, PartsOfRowsHaveTheCodesOfTheWhole) {
  constexpr int kOutputs = 40, kInputs = 384;
  struct Range {
    int first, count;
  };
  for (const WeightFormat& format : quantised_formats(DType::bf16)) {
    const Memory all(device_, matrix_bytes(format, kOutputs, kInputs));
    const Matrix whole{all.as(), format, kOutputs, kInputs};
    run(device_, FillRandom{.into = whole, .outputs = kOutputs, .seed = 11});
    for (const Range range : {Range{0, 128}, {128, 256}}) {
      const Memory memory(device_, matrix_bytes(format, kOutputs, range.count));
      const Matrix part{memory.as(), format, kOutputs, range.count};
      run(device_, FillRandom{.into = part, .outputs = kOutputs, .seed = 11, .part = {range.first, kInputs}});
      for (int o = 0; o < kOutputs; ++o) {
        expect_part(whole, part, range.first, o, to_string(format) + " drawn");
        if (HasFatalFailure()) return;
      }
    }
    if (!format.scales_outputs()) continue;
    auto values = random_floats(std::size_t{kOutputs} * kInputs, 9, 0.02f);
    for (std::size_t o = 0; o < kOutputs; ++o) values[o * kInputs + o * 7 % kInputs] *= 5;  // in some part
    for (const bool transposed : {false, true}) {
      const Source source(DType::bf16, transposed, kOutputs, kInputs, 0, values);
      const MemoryBytes bytes(source.bytes.data());
      run(device_, Pack{.into = whole, .file = &bytes, .transposed = transposed, .outputs = kOutputs});
      for (const Range range : {Range{0, 100}, {100, 37}, {137, 247}}) {
        const Memory memory(device_, matrix_bytes(format, kOutputs, range.count));
        const Matrix part{memory.as(), format, kOutputs, range.count};
        run(device_, Pack{.into = part,
                          .file = &bytes,
                          .transposed = transposed,
                          .outputs = kOutputs,
                          .part = {range.first, kInputs}});
        for (int o = 0; o < kOutputs; ++o) {
          expect_part(whole, part, range.first, o, to_string(format) + (transposed ? " transposed" : ""));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(QuantisedPack, TiesZerosAndNumbersThatAreNotFinite) {
  constexpr int kInputs = 70;
  const float inf = std::numeric_limits<float>::infinity(), least = std::numeric_limits<float>::denorm_min();
  std::vector<std::vector<float>> rows;
  for (const float largest : {127.0f, 7.0f, -127.0f, -7.0f}) {  // scales of 1: halves are ties
    std::vector<float> row(kInputs);
    for (int i = 0; i < kInputs; ++i) row[std::size_t(i)] = float(i % 14) - 6.5f;
    row[3] = row[35] = row[66] = largest;
    rows.push_back(row);
  }
  rows.emplace_back(kInputs, 0.0f);
  rows.emplace_back(kInputs, -0.0f);
  for (const float odd : {inf, -inf, std::nanf("")}) {
    auto row = random_floats(kInputs, 9);
    row[17] = odd;
    rows.push_back(row);
    row = random_floats(kInputs, 9);
    row[69] = odd;
    rows.push_back(row);
  }
  for (const float smallest : {least, 100 * least, 190 * least, 1e-38f}) {
    std::vector<float> row(kInputs, smallest);
    row[2] = -smallest;
    row[68] = smallest / 2;
    rows.push_back(row);
  }
  rows.emplace_back(kInputs, std::numeric_limits<float>::max());
  std::vector<float> source;
  for (const auto& row : rows) source.insert(source.end(), row.begin(), row.end());
  for (const WeightFormat& format : quantised_formats(DType::f32)) {
    if (format.group != 0 && format.group != 32) continue;
    const QuantisedWeight weight(device_, format, int(rows.size()), kInputs, source);
    for (std::size_t o = 0; o < rows.size(); ++o) {
      const float largest = *std::max_element(rows[o].begin(), rows[o].end());
      if (format.group != 0 && largest < 1e-30f && largest > 0) continue;  // subnormals: not the test's
      expect_codes(weight.matrix, int(o), rows[o], to_string(format) + " row " + std::to_string(o));
    }
  }
}

TEST_P(QuantisedPack, RandomWeightsAreTheDrawsOfABf16MatrixQuantised) {
  constexpr int kOutputs = 45, kInputs = 101;
  const Memory plain(device_, matrix_bytes(DType::bf16, kOutputs, kInputs));
  const Matrix draws{plain.as(), DType::bf16, kOutputs, kInputs};
  run(device_, FillRandom{.into = draws, .outputs = kOutputs, .seed = 5});
  std::vector<TokenId> ids;
  for (int o = 0; o < kOutputs; ++o) ids.push_back(o);
  const Rows numbers(device_, DType::f32, kOutputs, kInputs);
  run(device_, Embed{.out = numbers.floats(), .tokens = device_.put(ids), .table = draws, .rows = kOutputs});
  for (const DType activations : all_dtypes()) {
    for (const WeightFormat& format : quantised_formats(activations)) {
      const int outputs = gate_up_outputs(kOutputs);
      const Memory memory(device_, matrix_bytes(format, outputs, kInputs));
      const Matrix matrix{memory.as(), format, outputs, kInputs};
      run(device_, FillRandom{.into = matrix, .place = Place::up, .outputs = kOutputs, .seed = 5});
      for (int o = 0; o < kOutputs; ++o) {
        expect_codes(matrix, placed(Place::up, 0, o), row_of(numbers, o), to_string(format));
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace troupe::kernels
