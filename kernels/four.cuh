// Four neighbouring elements in one access. The address is a multiple of their size: whole tensors begin
// at multiples of 256 bytes.
#pragma once

template <class T> struct alignas(4 * sizeof(T)) Four { T v[4]; };

template <class T> XT_DEV Four<T> load4(const T* p) { return *reinterpret_cast<const Four<T>*>(p); }
template <class T> XT_DEV void store4(T* p, const Four<T>& x) { *reinterpret_cast<Four<T>*>(p) = x; }
