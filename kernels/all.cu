// One translation unit: every kernel, for nvcc and for the emulator alike.
#include "xt.cuh"
XT_BEGIN
#include "contract.cuh"
#include "add.cu"
#include "attention.cu"
#include "attention_backward.cu"
#include "cast.cu"
#include "cat_seq.cu"
#include "decode_attention.cu"
#include "embedding.cu"
#include "repeat_kv.cu"
#include "rope.cu"
XT_END
