// Decoding of wint2 beside the numpy statement (tools/generate/wint2_format.py --fixture), bit for bit, on
// every instruction set.
#include <gtest/gtest.h>

#include <cstring>

#include "gpu/isa.h"
#include "kernels/cpu/routines.h"
#include "kernels/matrix.h"
#include "kernels/wint2.h"
#include "model/support/quantised_golden.h"

namespace troupe::model {
namespace {

using namespace kernels;

class Wint2Decoder : public ::testing::TestWithParam<std::tuple<Isa, const char*>> {};
INSTANTIATE_TEST_SUITE_P(All, Wint2Decoder,
                         ::testing::Combine(::testing::ValuesIn(usable_isas()),
                                            ::testing::Values("wide", "tall")),
                         [](const auto& info) {
                           return std::string(to_string(std::get<0>(info.param))) + "_" +
                                  std::get<1>(info.param);
                         });

TEST_P(Wint2Decoder, CodesAndWeightsAreTheReferences) {
  const Routines& r = routines(std::get<0>(GetParam()));
  const std::string name = std::get<1>(GetParam());
  const test::QuantisedFile file("wint2");
  const auto bytes = file.read<std::uint8_t>(name + ".quant_weight"),
             groups = file.read<std::uint8_t>(name + ".weight_scale");
  const auto super_scales = file.read<std::uint16_t>(name + ".super_scales");
  const auto code_scales = file.read<float>(name + ".code_scale"),
             code_zps = file.read<float>(name + ".code_zp");
  const auto expected_codes = file.read<std::int8_t>(name + ".codes");
  const auto expected_weights = file.read<std::uint16_t>(name + ".weights");
  const std::size_t outputs = super_scales.size(), lines = bytes.size() / outputs;
  ASSERT_EQ(expected_codes.size(), lines * 4 * outputs);
  for (std::size_t first = 0; first < outputs; first += kPanel) {
    const std::size_t count = std::min<std::size_t>(kPanel, outputs - first);
    alignas(64) float line[2 * kPanel] = {};
    std::vector<std::uint8_t> panel(lines * kPanel), windows(4 * panel.size());
    for (std::size_t o = 0; o < count; ++o) {
      line[o] = code_scales[first + o];
      line[kPanel + o] = code_zps[first + o];
      for (std::size_t i = 0; i < lines; ++i) panel[i * kPanel + o] = bytes[i * outputs + first + o];
    }
    r.wint2_windows(windows.data(), panel.data(), line, int(4 * lines));
    for (std::size_t i = 0; i < 4 * lines; ++i) {
      for (std::size_t o = 0; o < count; ++o) {
        const std::size_t column = first + o;
        const int code = windows[(i / 4 * kPanel + o) * 4 + i % 4] - kWint2Offset;
        ASSERT_EQ(code, expected_codes[i * outputs + column]) << "input " << i << ", output " << column;
        const auto word =
            int(wint2_word(bytes[i / 4 * outputs + column], code_scales[column], code_zps[column]));
        ASSERT_EQ(wint2_code(word, int(i % 4)), code);
        const std::uint8_t both = groups[i / 128 * outputs + column];
        const int scale = i % 128 < 64 ? both >> 4 : both & 15;
        ASSERT_EQ(wint2_weight(code, scale, bf16_to_float(super_scales[column])),
                  expected_weights[i * outputs + column])
            << "input " << i << ", output " << column;
      }
    }
  }
  const Wint2Lines found = r.wint2_lines(code_scales.data(), code_zps.data(), int(outputs));
  EXPECT_EQ(found.out_of_range, -1);
  EXPECT_EQ(found.differing, file.read<std::int32_t>(name + ".differ").at(0));
  EXPECT_GT(found.differing, 0);
}

}  // namespace
}  // namespace troupe::model
