// One translation unit: every kernel, for nvcc and for the emulator alike.
#include "xt.cuh"
XT_BEGIN
#include "contract.cuh"
#include "four.cuh"
#include "walk.cuh"
#include "adamw.cu"
#include "add.cu"
#include "cast.cu"
#include "embedding.cu"
#include "finite.cu"
#include "norm_total.cu"
#include "rms_norm.cu"
#include "rms_norm_backward.cu"
#include "silu_mul.cu"
XT_END
