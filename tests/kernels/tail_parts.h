#pragma once
// What the tests of a layer's tail share, dense and with experts: norms, and the comparison of what one op
// makes with what its ops make one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/device_under_test.h"

namespace troupe::kernels {

/// Weights of a norm around 1 that `dtype` holds, with zeros behind them; memory of the device.
inline const float* random_norm_weight(DeviceUnderTest& device, DType dtype, int cols, std::uint32_t seed) {
  std::vector<float> weight = random_floats(std::size_t(padded(cols)), seed, 0.25f);
  for (int i = 0; i < padded(cols); ++i)
    weight[std::size_t(i)] = i < cols ? rounded_to(dtype, 1 + weight[std::size_t(i)]) : 0;
  return device.put(weight);
}

/// Expects no difference of more than four roundings of the largest number of `apart`, and no NaN.
inline void expect_near(const std::vector<float>& one, const std::vector<float>& apart, DType dtype,
                        const std::string& what) {
  double worst = 0, largest = 0;
  ASSERT_EQ(one.size(), apart.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    const double difference = std::abs(double(one[i]) - apart[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    largest = std::max(largest, double(std::abs(apart[i])));
  }
  EXPECT_LE(worst, 4 * std::max(rounding_unit(dtype), 1e-6) * largest) << what;
}

}  // namespace troupe::kernels
