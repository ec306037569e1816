// Tensor-core arithmetic, modelled in integers.
#pragma once
#include <stdint.h>

namespace xtemu {
// d[r][c] += sum over 16 k of a[r][k] * b[c][k], bf16, as one k-step of a Hopper tensor core.
void tensor_step(const uint16_t a[16][16], const uint16_t b[8][16], float d[16][8]);
// The same for one row and one column.
float tensor_dot(const uint16_t* a, const uint16_t* b, float c);
}  // namespace xtemu
