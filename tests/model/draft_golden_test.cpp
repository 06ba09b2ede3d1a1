// Logits of the draft layer on the CPU, compared with those of a reference in PyTorch: of its first run for
// every position, and of two more runs on its own output.
#include "gpu/cpu.h"
#include "model/support/draft.h"

namespace troupe::model {
namespace {

using test::DraftGolden;
using test::DraftSequence;

/// The draft layers' names and orientations: see CASES in make_draft_goldens.py.
constexpr const char* kCases[] = {"gqa3_tied", "gqa5_untied", "moe_shared2"};

class DraftGoldens : public ::testing::TestWithParam<std::tuple<const char*, DType, Isa>> {};

TEST_P(DraftGoldens, EqualTheReference) {
  const auto [name, dtype, isa] = GetParam();
  if (isa > cpu_features().best) GTEST_SKIP() << "this machine has no " << to_string(isa);
  const DraftGolden golden = test::load_draft_golden(name);
  const auto files = test::open_with_draft(name);
  ASSERT_TRUE(files.ok()) << files.status().message;
  Cpu device({.threads = 2, .pin = false, .isa = isa});
  const auto decoder = test::make_decoder(device, files->spec, dtype, files->map);
  ASSERT_TRUE(decoder.ok()) << decoder.status().message;
  std::vector<float> logits[3];
  test::draft_token_by_token(**decoder, golden, logits);
  test::check_draft(logits, golden, test::kTolerance[static_cast<int>(dtype)]);
}

std::string name_of(const ::testing::TestParamInfo<DraftGoldens::ParamType>& info) {
  const auto [name, dtype, isa] = info.param;
  return std::string(name) + "_" + to_string(dtype) + "_" + to_string(isa);
}

// Without the final norm on the hidden rows, or before the head.
TEST(DraftNorms, LeaveANormOut) {
  for (const char* model : kCases) {
    const auto file =
        Checkpoint::open_file(test::golden_directory(std::string("draft_") + model) / "golden.safetensors");
    const auto files = test::open_with_draft(model);
    ASSERT_TRUE(files.ok()) << files.status().message;
    for (const DraftNorms norms : {DraftNorms{.hidden = false}, DraftNorms{.output = false}}) {
      DraftGolden golden = test::load_draft_golden(model);
      const std::size_t all = golden.ids.size() - 1;
      golden.logits = test::values<float>(*file, norms.hidden ? "output_as_it_is" : "hidden_as_it_is");
      const std::size_t rows = golden.logits.size() / 3 / static_cast<std::size_t>(files->spec.vocab);
      golden.ids.resize(rows + 1);
      std::copy_n(golden.chained.begin() + static_cast<std::ptrdiff_t>(all), rows,
                  golden.chained.begin() + static_cast<std::ptrdiff_t>(rows));
      Cpu device({.threads = 2, .pin = false});
      const auto decoder = test::make_decoder(device, files->spec, DType::f32, files->map);
      ASSERT_TRUE(decoder.ok()) << decoder.status().message;
      (*decoder)->set_draft_norms(norms);
      std::vector<float> logits[3];
      test::draft_token_by_token(**decoder, golden, logits);
      test::check_draft(logits, golden, test::kTolerance[static_cast<int>(DType::f32)]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DraftGoldens,
    ::testing::Combine(::testing::ValuesIn(kCases), ::testing::Values(DType::f32, DType::bf16, DType::f16),
                       ::testing::Values(Isa::baseline, Isa::avx2, Isa::avx512, Isa::avx512_bf16)),
    name_of);

}  // namespace
}  // namespace troupe::model
