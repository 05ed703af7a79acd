#include <cmath>

#include "kernels/backend_entries.h"
#include "tensor/dtype.h"
#include "tensor/mxfp4.h"

namespace tandem::ref {

void embedding(const ExecContext&, const EmbeddingArgs& a) {
  for (int64_t t = 0; t < a.out.shape[0]; ++t) {
    weight_row_to_f32(a.table, a.tokens[t].value, {a.out.row(t), static_cast<size_t>(a.out.shape[1])});
  }
}

void add(const ExecContext&, const AddArgs& a) {
  for (int64_t t = 0; t < a.a.shape[0]; ++t) {
    for (int64_t d = 0; d < a.a.shape[1]; ++d) a.out(t, d) = a.a(t, d) + a.b(t, d);
  }
}

void sigmoid_gate(const ExecContext&, const SigmoidGateArgs& a) {
  for (int64_t t = 0; t < a.x.shape[0]; ++t) {
    for (int64_t d = 0; d < a.x.shape[1]; ++d) a.out(t, d) = a.x(t, d) * (1.f / (1.f + std::exp(-a.gate(t, d))));
  }
}

void sigmoid_inplace(const ExecContext&, const MatrixView<float>& x) {
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t d = 0; d < x.shape[1]; ++d) x(t, d) = 1.f / (1.f + std::exp(-x(t, d)));
  }
}

void round_to_bf16(const ExecContext&, const MatrixView<float>& x) {
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    for (int64_t d = 0; d < x.shape[1]; ++d) x(t, d) = round_bf16(x(t, d));
  }
}

}  // namespace tandem::ref
