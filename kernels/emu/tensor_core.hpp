// Tensor-core arithmetic, modelled in integers.
#pragma once
#include <stdint.h>

namespace xtemu {
// The architecture whose tensor cores are emulated. Mirrored in gpu/emulated.rs.
enum class TensorCore : uint32_t { Ampere, Hopper };
// d[r][c] += sum over 16 k of a[r][k] * b[c][k], bf16, as one k-step of this tensor core.
void tensor_step(TensorCore core, const uint16_t a[16][16], const uint16_t b[8][16], float d[16][8]);
}  // namespace xtemu
