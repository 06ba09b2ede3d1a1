#pragma once
// The exponential function on vectors.
namespace troupe::kernels {

/// e^x to about 2 units in the last place for x <= 88.3; exactly 1 at 0 and 0 below -87.3.
template <class V>
typename V::F exp_of(typename V::F x) {
  using F = typename V::F;
  constexpr float kLowest = -87.3f;  // e^x is a normal number from here up
  const F clamped = V::max(x, V::set1(kLowest));
  const F n = V::nearest(V::mul(clamped, V::set1(1.44269504088896341f)));
  F r = V::fma(n, V::set1(-0.693359375f), clamped);  // x - n ln 2, with ln 2 in two parts
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.0f / 5040);  // Taylor series for |r| <= ln 2 / 2; the first term left out is below 6e-9
  p = V::fma(p, r, V::set1(1.0f / 720));
  p = V::fma(p, r, V::set1(1.0f / 120));
  p = V::fma(p, r, V::set1(1.0f / 24));
  p = V::fma(p, r, V::set1(1.0f / 6));
  p = V::fma(p, r, V::set1(0.5f));
  p = V::fma(p, r, V::set1(1.0f));
  p = V::fma(p, r, V::set1(1.0f));
  return V::zero_where_below(x, V::set1(kLowest), V::scale_by_power(p, n));
}

template <class V>
float exp_of_scalar(float x) {
  return V::first(exp_of<V>(V::set1(x)));
}

}  // namespace troupe::kernels
