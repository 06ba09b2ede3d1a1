#pragma once
// Drawn weights of the tuned shapes and the sums over their codes and scales that
// tools/generate/make_quantised_goldens.py stores.
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/weight_format.h"
#include "model/checkpoint/spec.h"
#include "model/support/quantised_golden.h"

namespace troupe::model::test {

/// A term of weighted_sum() in tools/generate/quantise_reference.py.
inline std::int64_t weighted(std::int64_t value, std::int64_t o, std::int64_t i) {
  return value * (1 + (31 * o + i) % 1021);
}

inline kernels::WeightFormat format_named(const std::string& name) {
  using kernels::WeightKind;
  const int group = name.starts_with("int4_") ? std::stoi(name.substr(5)) : 0;
  return {name == "int8"  ? WeightKind::int8
          : name == "fp8" ? WeightKind::fp8
                          : WeightKind::int4,
          DType::bf16, group};
}

/// The sums over one weight's codes and scales in one format, by name.
struct StoredSums {
  std::string format, weight;
  std::int64_t codes = 0, scales = 0;
};
inline std::vector<StoredSums> stored_sums(const QuantisedFile& file) {
  const auto names = file.read<char>("sum_names");
  const auto codes = file.read<std::int64_t>("code_sums"), scales = file.read<std::int64_t>("scale_sums");
  std::istringstream lines(std::string(names.begin(), names.end()));
  std::vector<StoredSums> all;
  for (StoredSums sums; lines >> sums.format >> sums.weight; all.push_back(sums)) {
    sums.codes = codes.at(all.size());
    sums.scales = scales.at(all.size());
  }
  EXPECT_EQ(all.size(), codes.size());
  return all;
}

/// As dummy_seed() makes it for --seed 0: FNV-1a of the name.
inline std::uint64_t seed_of(const std::string& name) {
  std::uint64_t value = 0xcbf29ce484222325u;
  for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return value;
}

/// Outputs and inputs of a weight by its name.
inline std::pair<int, int> shape_of(const ModelSpec& spec, const std::string& name) {
  const int inner =
      name.find(".experts.") != std::string::npos ? spec.expert_intermediate : spec.intermediate;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("q_proj")) return {spec.q_width(), spec.hidden};
  if (has("k_proj") || has("v_proj")) return {spec.kv_width(), spec.hidden};
  if (has("o_proj")) return {spec.hidden, spec.q_width()};
  if (has("down_proj")) return {spec.hidden, inner};
  return {inner, spec.hidden};
}

}  // namespace troupe::model::test
