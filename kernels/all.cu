// One translation unit: every kernel, for nvcc and for the emulator alike.
#include "xt.cuh"
XT_BEGIN
#include "contract.cuh"
#include "add.cu"
#include "attention.cu"
#include "attention_backward.cu"
#include "attention_backward_bf16.cu"
#include "attention_bf16.cu"
#include "cast.cu"
#include "cat_seq.cu"
#include "decode_attention.cu"
#include "decode_attention_bf16.cu"
#include "embedding.cu"
#include "repeat_kv.cu"
#include "rope.cu"
XT_END
