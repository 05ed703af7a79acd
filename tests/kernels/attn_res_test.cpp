#include "kernels/attn_res/attn_res.h"

#include <gmock/gmock.h>

#include "kernels/dense_case.h"
#include "support/compare.h"
#include "support/golden.h"

namespace tandem::test {
namespace {

Matrix mix(const ExecContext& ctx, std::vector<Matrix>& sources, const std::vector<float>& weight, float eps) {
  Matrix out(sources[0].rows(), sources[0].cols());
  std::vector<MatrixView<const float>> views;
  for (Matrix& source : sources) views.push_back(source.view());
  const auto w = VectorView<const float>::contiguous(weight.data(), {static_cast<int64_t>(weight.size())});
  const Status status = attn_res_mix(ctx, {views, w, eps, out.view()});
  EXPECT_TRUE(status.is_ok()) << status.message();
  EXPECT_TRUE(out.padding_is_nan());
  return out;
}

TEST(AttnRes, Golden) {
  const Golden golden = Golden::load("golden/ops/attn_res.safetensors");
  for_each_backend([&](BackendFixture& backend) {
    for (const std::string name : {"n1", "n2", "n5", "n9"}) {
      const GoldenTensor& blocks = golden[name + ".blocks"];
      const int64_t T = blocks.shape[0];
      const int64_t n = blocks.shape[1];
      const int64_t D = blocks.shape[2];
      std::vector<Matrix> sources;
      for (int64_t i = 0; i < n; ++i) {
        Matrix block(T, D);
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t d = 0; d < D; ++d) block(t, d) = blocks.f32[static_cast<size_t>((t * n + i) * D + d)];
        }
        sources.push_back(std::move(block));
      }
      sources.emplace_back(T, D, golden[name + ".prefix"].f32);
      std::vector<float> weight = golden[name + ".norm_w"].f32;
      for (size_t d = 0; d < weight.size(); ++d) weight[d] *= golden[name + ".proj_w"].f32[d];
      const std::vector<float>& expected = golden[name + ".y"].f32;
      // The softmax turns an absolute error of a score into a relative one of the mix: scores are up to a few tens.
      EXPECT_TRUE(
          all_close(mix(backend.ctx(), sources, weight, 1e-5f).values(), expected, tolerance_f32(D, max_abs(expected))))
          << name;
    }
  });
}

TEST(AttnRes, Vector) {  // model.md §9
  for_each_backend([](BackendFixture& backend) {
    std::vector<Matrix> sources;
    sources.emplace_back(1, 4, std::vector<float>{1.f, 2.f, -1.f, 0.5f});
    sources.emplace_back(1, 4, std::vector<float>{0.5f, -1.f, 3.f, 2.f});
    sources.emplace_back(1, 4, std::vector<float>{4.f, 0.f, 1.f, -2.f});
    const std::vector<float> weight = {0.5f, -0.5f, 0.5f, 0.75f};  // (0.5, 1, 0.25, 1) ⊙ (1, −0.5, 2, 0.75)
    const std::vector<float> expected = {1.105388301f, -0.643570547f, 2.415564051f, 1.248502712f};
    EXPECT_TRUE(all_close(mix(backend.ctx(), sources, weight, 1e-5f).values(), expected, tolerance_f32(4, 2.5f)));
  });
}

TEST(AttnRes, OneSourceIsThatSourceExactly) {
  for_each_backend([](BackendFixture& backend) {
    std::vector<Matrix> sources = {Matrix::random(5, 33, 1)};
    const std::vector<float> weight = Matrix::random(1, 33, 2).values();
    EXPECT_TRUE(all_equal_bits(mix(backend.ctx(), sources, weight, 1e-5f).values(), sources[0].values()));
  });
}

TEST(AttnRes, EqualSourcesGiveTheSourceAndHugeScoresSelect) {
  for_each_backend([](BackendFixture& backend) {
    for (const int64_t n : {2, 16, 17, 187}) {
      std::vector<Matrix> same(static_cast<size_t>(n), Matrix::random(3, 65, 4));
      const std::vector<float> weight = Matrix::random(1, 65, 5).values();
      const std::vector<float> expected = same[0].values();
      EXPECT_TRUE(
          all_close(mix(backend.ctx(), same, weight, 1e-5f).values(), expected, tolerance_f32(n, max_abs(expected))));
    }
    // One score of 8e4 among smaller ones: no overflow, and the others weigh exactly nothing.
    std::vector<Matrix> sources = {Matrix::random(2, 64, 6), Matrix(2, 64, std::vector<float>(128, 2.f)),
                                   Matrix::random(2, 64, 7)};
    const std::vector<float> weight(64, 1250.f);
    EXPECT_TRUE(all_equal_bits(mix(backend.ctx(), sources, weight, 1e-5f).values(), sources[1].values()));
  });
}

TEST(AttnRes, RowsAreIndependentOfTheBatchAndThreads) {
  for (const KernelBackend which : available_backends(detect_cpu_features())) {
    BackendFixture one(which, 1);
    BackendFixture many(which, 4);
    std::vector<Matrix> sources;
    for (uint32_t i = 0; i < 6; ++i) sources.push_back(Matrix::random(90, 200, i));
    const std::vector<float> weight = Matrix::random(1, 200, 77, 0.1f).values();
    const Matrix whole = mix(many.ctx(), sources, weight, 1e-5f);
    for (const int64_t t : {0, 41, 89}) {
      std::vector<Matrix> single;
      for (const Matrix& source : sources) single.emplace_back(1, 200, source.row(t));
      EXPECT_TRUE(all_equal_bits(mix(one.ctx(), single, weight, 1e-5f).values(), whole.row(t)));
    }
  }
}

TEST(AttnRes, Refusals) {
  BackendFixture backend(KernelBackend::kRef);
  Matrix out(2, 4);
  Matrix source = Matrix::random(2, 5, 1);
  const std::vector<float> weight(4, 1.f);
  const auto w = VectorView<const float>::contiguous(weight.data(), {4});
  EXPECT_THAT(attn_res_mix(backend.ctx(), {{}, w, 1e-5f, out.view()}).message(),
              ::testing::HasSubstr("at least one source"));
  const MatrixView<const float> view = source.view();
  EXPECT_THAT(attn_res_mix(backend.ctx(), {{&view, 1}, w, 1e-5f, out.view()}).message(),
              ::testing::HasSubstr("source 0: expected shape [2, 4], found shape [2, 5]"));
  const MatrixView<const float> fits = out.view();
  EXPECT_THAT(attn_res_mix(backend.ctx(), {{&fits, 1}, w, 0.f, out.view()}).message(),
              ::testing::HasSubstr("attn_res_mix: eps: expected a value > 0, found 0"));
}

}  // namespace
}  // namespace tandem::test
