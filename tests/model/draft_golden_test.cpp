// Logits of the draft layer on the CPU, compared with those of a reference in PyTorch: of its first run for
// every position, and of two more runs on its own output.
#include "gpu/cpu.h"
#include "model/support/draft.h"

namespace troupe::model {
namespace {

class DraftGoldens : public ::testing::TestWithParam<std::tuple<const char*, DType, Isa>> {};

TEST_P(DraftGoldens, EqualTheReference) {
  const auto [name, dtype, isa] = GetParam();
  if (!usable(isa)) GTEST_SKIP() << "this machine has no " << to_string(isa);
  Cpu device({.threads = 2, .pin = false, .isa = isa});
  test::check_draft_golden(device, name, dtype);
}

std::string name_of(const ::testing::TestParamInfo<DraftGoldens::ParamType>& info) {
  const auto [name, dtype, isa] = info.param;
  return std::string(name) + "_" + to_string(dtype) + "_" + to_string(isa);
}

TEST(DraftNorms, LeaveANormOut) {
  Cpu device({.threads = 2, .pin = false});
  for (const char* model : test::kDraftCases) test::check_draft_norms(device, model);
}

INSTANTIATE_TEST_SUITE_P(All, DraftGoldens,
                         ::testing::Combine(::testing::ValuesIn(test::kDraftCases),
                                            ::testing::Values(DType::f32, DType::bf16, DType::f16),
                                            ::testing::Values(Isa::baseline, Isa::avx2, Isa::avx512,
                                                              Isa::avx512_bf16, Isa::amx)),
                         name_of);

}  // namespace
}  // namespace troupe::model
