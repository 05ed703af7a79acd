#include "kernels/simd/weight_product.inl"

namespace tandem::neon {

void weight_product(WeightFormat format, const Product& product) { multiply(format, product); }
bool product_streams(int64_t num_tokens) { return num_tokens <= kTileTokens; }
int64_t product_scratch_floats(int64_t cols, int64_t num_tokens) { return scratch_floats(cols, num_tokens); }

}  // namespace tandem::neon
