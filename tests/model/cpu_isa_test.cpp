// --cpu-isa: every set by its name, as far as the machine has it.
#include "model/cpu_isa.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/best_isa.h"

namespace troupe::model {
namespace {

TEST(CpuIsa, TheOptionNamesTheSet) {
  const std::pair<config::CpuIsa, Isa> named[] = {
      {config::CpuIsa::baseline, Isa::baseline},       {config::CpuIsa::avx2, Isa::avx2},
      {config::CpuIsa::avx512, Isa::avx512},           {config::CpuIsa::avx512_vnni, Isa::avx512_vnni},
      {config::CpuIsa::avx512_bf16, Isa::avx512_bf16}, {config::CpuIsa::amx, Isa::amx}};
  for (const auto& [asked, isa] : named) {
    const Result<ChosenIsa> chosen = choose_isa(asked);
    if (usable(isa)) {
      ASSERT_TRUE(chosen.ok()) << chosen.status().message;
      EXPECT_TRUE(chosen->isa == isa || !chosen->slow_way.empty()) << to_string(isa);
    } else if (isa != Isa::amx || !cpu_features().amx) {
      EXPECT_EQ(check_isa(asked).code, Code::invalid_argument) << to_string(isa);
      EXPECT_NE(check_isa(asked).message.find(to_string(isa)), std::string::npos);
    }
  }
}

TEST(CpuIsa, WithoutTheOptionItIsTheBest) {
  const Result<ChosenIsa> chosen = choose_isa(config::CpuIsa::automatic);
  ASSERT_TRUE(chosen.ok());
  EXPECT_EQ(chosen->isa, kernels::best_isa().isa);
  EXPECT_EQ(chosen->isa == cpu_features().best, !cpu_features().amx || !chosen->slow_way.empty());
  EXPECT_EQ(chosen->slow_way, kernels::best_isa().why_not_amx);
}

}  // namespace
}  // namespace troupe::model
