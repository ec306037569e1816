// Several matrices of one launch: a block takes a piece of one of them.
#pragma once

// Up to three matrices that read one x, their biases and outputs; an absent one has no outputs. They stay arguments of
// the kernel: a block asks for its own anew each time, which costs fewer registers than to keep it.
template <class T>
struct Matrices {
  const T *w0, *w1, *w2;
  const float *b0, *b1, *b2;
  T *y0, *y1, *y2;
  uint32_t outs0, outs1, outs2;
};

// The matrix of a block, and its first output there, where a block takes `each`.
struct Turn3 { uint32_t part, o0; };

template <class T>
XT_DEV Turn3 turn_of(const Matrices<T>& w, uint32_t block, uint32_t each) {
  uint32_t first = (w.outs0 + each - 1) / each, second = first + (w.outs1 + each - 1) / each;
  if (block < first) return {0, block * each};
  if (block < second) return {1, (block - first) * each};
  return {2, (block - second) * each};
}
template <class T>
XT_DEV const T* matrix(const Matrices<T>& w, uint32_t part) { return part == 0 ? w.w0 : part == 1 ? w.w1 : w.w2; }
template <class T>
XT_DEV uint32_t outs_of(const Matrices<T>& w, uint32_t part) { return part == 0 ? w.outs0 : part == 1 ? w.outs1 : w.outs2; }
template <class T>
XT_DEV const float* bias_of(const Matrices<T>& w, uint32_t part) { return part == 0 ? w.b0 : part == 1 ? w.b1 : w.b2; }
template <class T>
XT_DEV T* output_of(const Matrices<T>& w, uint32_t part) { return part == 0 ? w.y0 : part == 1 ? w.y1 : w.y2; }
