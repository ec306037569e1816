// One translation unit: every kernel, for nvcc and for the emulator alike.
#include "xt.cuh"
XT_BEGIN
#include "contract.cuh"
#include "add.cu"
#include "cast.cu"
#include "cross_entropy.cu"
#include "embedding.cu"
#include "finite.cu"
#include "linear_bf16.cu"
#include "linear_bias.cu"
#include "linear_f32.cu"
#include "linear_few_bf16.cu"
#include "linear_few_f32.cu"
#include "log_prob.cu"
XT_END
