// tests/kernels/warm_call_test.cpp: a call of any operator that passes its checks takes nothing from the heap once the
// arena has grown.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/dense_case.h"
#include "support/compare.h"
#include "support/heap_calls.h"

namespace tandem::test {
namespace {

// The first call may grow the arena; the second finds it warm.
template <class Call>
void expect_no_heap(const char* op, const Call& call) {
  const Status first = call();
  ASSERT_TRUE(first.is_ok()) << first.message();
  count_heap_calls(true);
  const Status second = call();
  count_heap_calls(false);
  EXPECT_TRUE(second.is_ok());
  EXPECT_EQ(take_heap_calls(), 0) << op;
}

constexpr int64_t kWidth = 64;

VectorView<const float> vector_of(const std::vector<float>& v) {
  return VectorView<const float>::contiguous(v.data(), {static_cast<int64_t>(v.size())});
}
// [T, H, kWidth] from a matrix [T, H · kWidth] without padding.
template <class T>
TensorView<T, 3> heads_of(const MatrixView<T>& m, int64_t heads) {
  return TensorView<T, 3>::contiguous(m.data, {m.shape[0], heads, m.shape[1] / heads});
}

TEST(WarmCalls, TheCounterSeesAllocations) {
  count_heap_calls(true);
  const std::vector<float> v(100);
  count_heap_calls(false);
  EXPECT_EQ(take_heap_calls(), 1) << v.data();
}

TEST(WarmCalls, DenseOperatorsTakeNothingFromTheHeap) {
  for_each_backend([](BackendFixture& backend) {
    const ExecContext& ctx = backend.ctx();
    for (const int64_t T : {1, 20}) {
      Matrix x = Matrix::random(T, kWidth, 1);
      Matrix y = Matrix::random(T, kWidth, 2);
      Matrix out(T, kWidth);
      const std::vector<float> weight(kWidth, 1.f);
      for (const WeightFormat format : kAllFormats) {
        const StoredWeight stored(format, kWidth, kWidth, 3);
        const LinearOutput outputs[] = {{stored.view(), out.view()}, {stored.view(), y.view()}};
        expect_no_heap("linear", [&] { return linear(ctx, {x.view(), outputs}); });
        const std::vector<TokenId> tokens(static_cast<size_t>(T), TokenId(3));
        expect_no_heap("embedding", [&] { return embedding(ctx, {stored.view(), tokens, out.view()}); });
      }
      expect_no_heap("rms_norm", [&] { return rms_norm(ctx, {x.view(), vector_of(weight), 1e-5f, out.view()}); });
      expect_no_heap("rms_norm_gated", [&] {
        return rms_norm_gated(ctx, {x.view(), y.view(), vector_of(weight), 1e-5f, out.view()});
      });
      expect_no_heap("l2_norm", [&] { return l2_norm(ctx, {x.view(), 1e-6f, out.view()}); });
      const MatrixView<const float> sources[] = {x.view(), y.view()};
      expect_no_heap("attn_res_mix", [&] {
        return attn_res_mix(ctx, {sources, vector_of(weight), 1e-5f, out.view()});
      });
      const GatedActParams situ{GatedAct::kSitu, 4.f, 25.f};
      expect_no_heap("gated_act", [&] { return gated_act(ctx, {x.view(), y.view(), situ, out.view()}); });
      expect_no_heap("add", [&] { return add(ctx, {x.view(), y.view(), out.view()}); });
      expect_no_heap("sigmoid_gate", [&] { return sigmoid_gate(ctx, {x.view(), y.view(), out.view()}); });
      expect_no_heap("sigmoid_inplace", [&] { return sigmoid_inplace(ctx, out.view()); });
      expect_no_heap("round_to_bf16", [&] { return round_to_bf16(ctx, out.view()); });
    }
  });
}

TEST(WarmCalls, RouterAndExpertsTakeNothingFromTheHeap) {
  for_each_backend([](BackendFixture& backend) {
    const ExecContext& ctx = backend.ctx();
    constexpr int64_t kExperts = 8;
    constexpr int64_t kChosen = 2;
    const StoredWeight stored(WeightFormat::kMxfp4, kWidth, kWidth, 4);
    const std::vector<ExpertWeights> experts(kExperts, {stored.view(), stored.view(), stored.view()});
    for (const int64_t T : {1, 20}) {
      Matrix logits = Matrix::random(T, kExperts, 5);
      const std::vector<float> bias(kExperts, 0.f);
      std::vector<int32_t> ids(static_cast<size_t>(T * kChosen));
      const auto ids_view = MatrixView<int32_t>::contiguous(ids.data(), {T, kChosen});
      Matrix weights(T, kChosen);
      RouterSelectArgs route;
      route.logits = logits.view();
      route.bias = vector_of(bias);
      route.num_groups = 4;
      route.topk_group = 2;
      route.topk_ids = ids_view;
      route.topk_weights = weights.view();
      expect_no_heap("router_select", [&] { return router_select(ctx, route); });
      Matrix z = Matrix::random(T, kWidth, 6);
      Matrix out(T, kWidth);
      for (const ExpertAct act : {ExpertAct::kF32, ExpertAct::kMxfp8}) {
        MoeExpertsArgs args;
        args.z = z.view();
        args.topk_ids = ids_view;
        args.topk_weights = weights.view();
        args.experts = experts;
        args.expert_act = act;
        args.out = out.view();
        expect_no_heap("moe_experts", [&] { return moe_experts(ctx, args); });
      }
    }
  });
}

TEST(WarmCalls, KdaOperatorsTakeNothingFromTheHeap) {
  for_each_backend([](BackendFixture& backend) {
    const ExecContext& ctx = backend.ctx();
    constexpr int64_t kHeads = 2;
    constexpr int64_t kTaps = 4;
    for (const int64_t T : {1, 20}) {
      Matrix q = Matrix::random(T, kHeads * kWidth, 7, 0.1f, 0);
      Matrix out(T, kHeads * kWidth, 0);
      Matrix gate(T, kHeads * kWidth, 0);
      Matrix beta = Matrix::random(T, kHeads, 8);
      Matrix history(kTaps - 1, kHeads * kWidth, std::vector<float>((kTaps - 1) * kHeads * kWidth, 0.f));
      Matrix taps = Matrix::random(kHeads * kWidth, kTaps, 9);
      const ShortConvSegment conv_segment{0, T, history.view()};
      expect_no_heap("short_conv", [&] {
        return short_conv(ctx, {q.view(), taps.view(), {&conv_segment, 1}, out.view()});
      });
      const std::vector<float> a_log(kHeads, 0.f);
      const std::vector<float> dt_bias(kHeads * kWidth, 0.f);
      const KdaGateArgs gate_args{heads_of<const float>(q.view(), kHeads), vector_of(a_log), vector_of(dt_bias), -5.f,
                                  heads_of<float>(gate.view(), kHeads)};
      expect_no_heap("kda_gate", [&] { return kda_gate(ctx, gate_args); });
      std::vector<float> state(kHeads * kWidth * kWidth, 0.f);
      const KdaSegment segment{0, T, state.data()};
      KdaArgs args;
      args.q = args.k = args.v = heads_of<const float>(q.view(), kHeads);
      args.g = heads_of<const float>(gate.view(), kHeads);
      args.beta = beta.view();
      args.scale = 0.125f;
      args.segments = {&segment, 1};
      args.out = heads_of<float>(out.view(), kHeads);
      expect_no_heap("kda_recurrent", [&] { return kda_recurrent(ctx, args); });
      expect_no_heap("kda_chunked", [&] { return kda_chunked(ctx, args); });
      Matrix packed_history(kTaps - 1, 3 * kHeads * kWidth, std::vector<float>((kTaps - 1) * 3 * kHeads * kWidth, 0.f));
      Matrix packed_taps = Matrix::random(3 * kHeads * kWidth, kTaps, 12);
      const std::vector<float> norm_weight(kWidth, 1.f);
      const KdaDecodeSegment decode_segment{0, T, state.data(), packed_history.view()};
      KdaDecodeArgs decode;
      decode.heads = kHeads;
      decode.q = decode.k = decode.v = decode.z = decode.gate = q.view();
      decode.beta = beta.view();
      decode.conv_weight = packed_taps.view();
      decode.a_log = vector_of(a_log);
      decode.dt_bias = vector_of(dt_bias);
      decode.lower_bound = -5.f;
      decode.norm_weight = vector_of(norm_weight);
      decode.scale = 0.125f;
      decode.segments = {&decode_segment, 1};
      decode.out = out.view();
      expect_no_heap("kda_decode", [&] { return kda_decode(ctx, decode); });
    }
  });
}

TEST(WarmCalls, MlaTakesNothingFromTheHeap) {
  for_each_backend([](BackendFixture& backend) {
    const ExecContext& ctx = backend.ctx();
    constexpr int64_t kHeads = 3;
    constexpr int64_t kRank = 32;
    constexpr int64_t kRope = 8;
    constexpr int64_t kLength = 70;
    constexpr int64_t kPageTokens = 16;
    const std::vector<uint16_t> page(kPageTokens * (kRank + kRope), 0x3f80);
    const std::vector<const std::byte*> pages((kLength + kPageTokens - 1) / kPageTokens,
                                              reinterpret_cast<const std::byte*>(page.data()));
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
      const StoredWeight kv_b(format, kHeads * 2 * kWidth, kRank, 10);
      for (const int64_t T : {1, 20}) {
        Matrix q = Matrix::random(T, kHeads * (kWidth + kRope), 11, 1.f, 0);
        Matrix out(T, kHeads * kWidth, 0);
        const MlaSegment segment{0, T, {pages, kPageTokens, DType::kBF16, kLength}};
        MlaArgs args;
        args.q = heads_of<const float>(q.view(), kHeads);
        args.kv_b = kv_b.view();
        args.kv_lora_rank = kRank;
        args.qk_nope_head_dim = kWidth;
        args.qk_rope_head_dim = kRope;
        args.v_head_dim = kWidth;
        args.scale = 0.1f;
        args.segments = {&segment, 1};
        args.out = heads_of<float>(out.view(), kHeads);
        expect_no_heap("mla_expanded", [&] { return mla_expanded(ctx, args); });
        expect_no_heap("mla_absorbed", [&] { return mla_absorbed(ctx, args); });
      }
    }
  });
}

}  // namespace
}  // namespace tandem::test
