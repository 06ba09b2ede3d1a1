#pragma once
// Operations on rows: conversion, addition to the residual, RMSNorm, SwiGLU. Rows are padded with zeros to a
// multiple of 32 elements, so loops have no remainder.
#include "kernels/cpu/math.h"
#include "kernels/cpu/tile.h"

namespace troupe::kernels {

template <class V, DType T>
typename V::F load_as_float(const Stored<V, T>* p) {
  if constexpr (T == DType::bf16) {
    return V::load_bf16(p);
  } else if constexpr (T == DType::f16) {
    return V::load_f16(p);
  } else {
    return V::load(p);
  }
}

template <class V, DType T>
void store_rounded(Stored<V, T>* p, typename V::F value) {
  if constexpr (T == DType::bf16) {
    V::store_bf16(p, value);
  } else if constexpr (T == DType::f16) {
    V::store_f16(p, value);
  } else {
    V::store(p, value);
  }
}

/// The value rounded to the dtype and converted back to fp32.
template <class V, DType T>
typename V::F rounded(typename V::F value) {
  if constexpr (T == DType::f32) {
    return value;
  } else {
    Stored<V, T> stored[V::kLanes];
    store_rounded<V, T>(stored, value);
    return load_as_float<V, T>(stored);
  }
}

template <class V, DType T>
void expand(float* to, const void* from, std::size_t count) {
  const auto* p = static_cast<const Stored<V, T>*>(from);
  for (std::size_t i = 0; i < count; i += V::kLanes) V::store(to + i, load_as_float<V, T>(p + i));
}

template <class V, DType T>
void narrow(void* to, const float* from, std::size_t count) {
  auto* p = static_cast<Stored<V, T>*>(to);
  for (std::size_t i = 0; i < count; i += V::kLanes) store_rounded<V, T>(p + i, V::load(from + i));
}

template <class V>
void add_to(float* to, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += V::kLanes)
    V::store(to + i, V::add(V::load(to + i), V::load(from + i)));
}

template <class V, DType T>
void norm(const NormArgs& a) {
  using F = typename V::F;
  const int width = padded(a.cols);
  F squares[2] = {V::set1(0), V::set1(0)};
  for (int i = 0; i < width; i += 2 * V::kLanes) {
    for (int j = 0; j < 2; ++j) {
      float* at = a.h + i + j * V::kLanes;
      F h = V::load(at);
      if (a.add != nullptr) {
        h = V::add(h, V::load(a.add + i + j * V::kLanes));
        V::store(at, h);
      }
      squares[j] = V::fma(h, h, squares[j]);
    }
  }
  const float mean = V::sum_lanes(V::add(squares[0], squares[1])) / static_cast<float>(a.cols);
  const F inverse = V::set1(1.0f / __builtin_sqrtf(mean + a.eps));
  auto* out = static_cast<Stored<V, T>*>(a.out);
  for (int i = 0; i < width; i += V::kLanes) {
    const F unit = rounded<V, T>(V::mul(V::load(a.h + i), inverse));
    store_rounded<V, T>(out + i, V::mul(unit, V::load(a.weight + i)));
  }
}

template <class V, DType T>
void swiglu(void* a, const float* gate, const float* up, std::size_t count) {
  using F = typename V::F;
  auto* out = static_cast<Stored<V, T>*>(a);
  const F one = V::set1(1);
  const F least = V::set1(-88.0f);  // below it, silu is 0 in fp32 and e^-g would overflow
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const F g = V::load(gate + i);
    const F e = exp_of<V>(V::sub(V::set1(0), V::max(g, least)));
    store_rounded<V, T>(out + i, V::mul(V::div(g, V::add(one, e)), V::load(up + i)));
  }
}

template <class V>
void exponentials(float* row, std::size_t count, float largest, float scale) {
  for (std::size_t i = 0; i < count; i += V::kLanes) {
    const typename V::F off = V::sub(V::load(row + i), V::set1(largest));
    V::store(row + i, exp_of<V>(V::mul(off, V::set1(scale))));
  }
}

}  // namespace troupe::kernels
