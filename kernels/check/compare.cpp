#include <algorithm>
#include <cstdio>

#include "kernels/check/side.h"

namespace troupe::kernels::check {
namespace {

std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", number);
  return text;
}

}  // namespace

Status compare(const Numbers& got, const Numbers& reference, const Bound& bound) {
  if (got.size() != reference.size())
    return failure(Code::internal,
                   std::to_string(got.size()) + " numbers instead of " + std::to_string(reference.size()));
  double largest = 0;
  for (const float number : reference) largest = std::max(largest, std::abs(static_cast<double>(number)));
  if (!(largest > 0)) return failure(Code::internal, "the reference is zero everywhere");
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double expected = reference[i], difference = std::abs(got[i] - expected);
    if (difference <= bound.relative * std::abs(expected) + bound.of_largest * largest) continue;
    return failure(Code::internal, "number " + std::to_string(i) + " of " + std::to_string(got.size()) +
                                       " is " + text_of(got[i]) + " instead of " + text_of(expected));
  }
  return {};
}

}  // namespace troupe::kernels::check
