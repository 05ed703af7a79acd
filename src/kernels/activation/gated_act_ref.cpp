#include <cmath>

#include "kernels/backend_entries.h"

namespace tandem::ref {

void gated_act(const ExecContext&, const GatedActArgs& a) {
  for (int64_t t = 0; t < a.gate.shape[0]; ++t) {
    for (int64_t i = 0; i < a.gate.shape[1]; ++i) {
      const float gate = a.gate(t, i);
      const float up = a.up(t, i);
      const float sigmoid = 1.f / (1.f + std::exp(-gate));
      if (a.params.kind == GatedAct::kSwiGlu) {
        a.out(t, i) = gate * sigmoid * up;
        continue;
      }
      const float beta = a.params.beta;
      const float capped_gate = beta * std::tanh(gate / beta);
      const float capped_up =
          a.params.linear_beta.has_value() ? *a.params.linear_beta * std::tanh(up / *a.params.linear_beta) : up;
      a.out(t, i) = capped_gate * sigmoid * capped_up;
    }
  }
}

}  // namespace tandem::ref
