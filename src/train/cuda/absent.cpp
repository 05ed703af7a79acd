// train/cuda/absent.cpp: the launchers of a build without CUDA. Nothing calls them: kernels::take() says no there.
#include "train/cuda/kda_kernels.h"
#include "train/cuda/kernels.h"

#if !defined(TANDEM_HAS_TRAIN_CUDA) && !defined(TANDEM_EMULATED_KERNELS)

namespace tandem::train::cuda {
namespace {

constexpr int kNoDevice = 100;  // cudaErrorNoDevice

}  // namespace

int partial_blocks(int64_t, int) { return 1; }
int64_t short_conv_tiles(int64_t) { return 1; }
int attn_res_forward(const AttnResArgs&, void*, Stream) { return kNoDevice; }
int attn_res_backward(const AttnResArgs&, const AttnResGradient&, Stream) { return kNoDevice; }
int rms_norm_forward(const RmsNormArgs&, void*, Stream) { return kNoDevice; }
int rms_norm_backward(const RmsNormArgs&, const RmsNormGradient&, Stream) { return kNoDevice; }
int short_conv_forward(const ShortConvArgs&, void*, Stream) { return kNoDevice; }
int short_conv_backward(const ShortConvArgs&, const ShortConvGradient&, Stream) { return kNoDevice; }
int kda_gate_forward(const KdaGateArgs&, float*, Stream) { return kNoDevice; }
int kda_gate_backward(const KdaGateArgs&, const KdaGateGradient&, Stream) { return kNoDevice; }
int gated_act_forward(const GatedActArgs&, void*, Stream) { return kNoDevice; }
int gated_act_backward(const GatedActArgs&, const void*, void*, void*, Stream) { return kNoDevice; }
int gather_rows(const void*, int64_t, const int64_t*, int64_t, int64_t, void*, Stream) { return kNoDevice; }
int cross_entropy_forward(const CrossEntropyArgs&, float*, float*, Stream) { return kNoDevice; }
int cross_entropy_backward(const CrossEntropyArgs&, const float*, const float*, void*, Stream) { return kNoDevice; }
int kda_prepare(const KdaRows&, const KdaTerms&, Stream) { return kNoDevice; }
int kda_prepare_backward(const KdaRows&, const KdaTermGradients&, Stream) { return kNoDevice; }
int kda_scan(const KdaScanArgs&, Stream) { return kNoDevice; }
int kda_scan_reverse(const KdaScanArgs&, Stream) { return kNoDevice; }

}  // namespace tandem::train::cuda

#endif
