// Vectorized access to four consecutive elements (float4, or 8 bytes of bf16). The address must be aligned to the
// vector: tensors begin at multiples of 256 bytes.
#pragma once
#include "xt.cuh"

template <class T> struct alignas(4 * sizeof(T)) Vec4 {
  T v[4];
};

template <class T> XT_DEV Vec4<T> load4(const T* p) { return *reinterpret_cast<const Vec4<T>*>(p); }
template <class T> XT_DEV void store4(T* p, const Vec4<T>& x) { *reinterpret_cast<Vec4<T>*>(p) = x; }
