// tests/train/gradient_check.h: autograd against central differences in fp64.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::test {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Σ f() ⊙ fixed random weights, differentiated by each named tensor (double leaves with requires_grad that f reads).
// Of each, up to `elements` spread over it are moved by ±1e-4 and ±2e-4. The combined difference errs by the fifth
// derivative times 1e-16/30 and by the rounding of the sum over 1e-4, about 1e-12 of it: 1e-7 of the largest gradient
// or of the sum, and an absolute 1e-8, leave room for fifth derivatives of 1e9.
// Every tensor must have a gradient that is not zero throughout, unless `may_be_zero` names it.
void expect_gradients(const std::function<at::Tensor()>& f, const NamedTensors& inputs, int64_t elements = 24,
                      const std::vector<std::string>& may_be_zero = {});

// Double leaf of standard normal values times `spread`, from a counter-based generator of its own.
at::Tensor random_leaf(at::IntArrayRef shape, uint64_t seed, double spread = 1.0);

}  // namespace tandem::test
