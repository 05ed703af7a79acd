// tests/cache/fake_model.h: a model whose caches are a readable function of the tokens, so that a test can say of every
// byte what it must be: the state of layer l after p tokens and the latent row of token p are the prefix's hash, spread
// over their elements as numbers from 0 to 255, which f32 and bf16 hold exactly.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/cat.h"
#include "cache/hybrid_cache.h"
#include "tensor/stored_floats.h"

namespace tandem::test {

// Kinds as a string: 'k' for KDA, 'm' for MLA.
inline CacheLayout fake_layout(std::string_view kinds, DType dtype = DType::kF32, int64_t head_dim = 4,
                               int64_t latent_width = 8) {
  CacheLayout layout;
  for (const char kind : kinds) layout.kinds.push_back(kind == 'k' ? LayerKind::kKda : LayerKind::kMla);
  layout.dtype = dtype;
  layout.kda_heads = 1;
  layout.kda_head_dim = head_dim;
  layout.conv_rows = 3;
  layout.conv_channels = 3 * head_dim;
  layout.latent_width = latent_width;
  layout.page_tokens = 1;
  return layout;
}

inline std::vector<TokenId> to_tokens(const std::vector<int32_t>& values) {
  std::vector<TokenId> tokens;
  for (const int32_t value : values) tokens.emplace_back(value);
  return tokens;
}

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 29);
}

class FakeModel {
 public:
  explicit FakeModel(const CacheLayout& layout) : layout_(layout) {}

  // What layer `l` holds after `length` tokens is what it must be; the message names the first place that is not.
  ::testing::AssertionResult holds(const SequenceCacheView& view, const std::vector<TokenId>& tokens,
                                   int64_t length) const {
    const std::vector<uint64_t> prefix = prefixes(tokens, length);
    for (size_t l = 0; l < view.layers.size(); ++l) {
      if (const auto* state = std::get_if<KdaState>(&view.layers[l])) {
        if (state->position != length) {
          return ::testing::AssertionFailure() << "layer " << l << " is at " << state->position << ", not " << length;
        }
        if (!is(state->recurrent, layout_.recurrent_elements(), length == 0 ? 0 : key(prefix, length, l)) ||
            !is(state->conv, layout_.conv_elements(), length == 0 ? 0 : key(prefix, length, l + 1000))) {
          return ::testing::AssertionFailure() << "layer " << l << ": the state is not that of " << length << " tokens";
        }
      } else {
        const auto& latent = std::get<MlaLatent>(view.layers[l]);
        if (latent.length != length) {
          return ::testing::AssertionFailure() << "layer " << l << " holds " << latent.length << ", not " << length;
        }
        for (int64_t p = 0; p < length; ++p) {
          if (!is(row(latent, p), layout_.latent_width, key(prefix, p + 1, l))) {
            return ::testing::AssertionFailure() << "layer " << l << ": wrong latent at " << p << " of " << length;
          }
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  // The rows [done, done + count) of `tokens`, and the captures.
  void run(const SequenceCacheView& view, std::span<const PlannedCapture> captures, const std::vector<TokenId>& tokens,
           int64_t done, int64_t count) const {
    const int64_t end = done + count;
    const std::vector<uint64_t> prefix = prefixes(tokens, end);
    for (size_t l = 0; l < view.layers.size(); ++l) {
      if (auto* state = std::get_if<KdaState>(&view.layers[l])) {
        write_state(*state, prefix, end, l);
        for (const PlannedCapture& capture : captures) {
          write_state(std::get<KdaState>(capture.view.layers[l]), prefix, done + capture.num_tokens, l);
        }
      } else {
        auto& latent = std::get<MlaLatent>(view.layers[l]);
        for (int64_t p = done; p < end; ++p) write(row(latent, p), layout_.latent_width, key(prefix, p + 1, l));
        latent.length = end;
      }
    }
  }

  // One step of `count` tokens of a live sequence: checks what is there, runs, commits.
  ::testing::AssertionResult step(HybridCache& cache, SeqId id, const std::vector<TokenId>& tokens,
                                  int64_t count) const {
    const int64_t done = cache.length(id);
    if (!cache.prepare_step(id, count)) return ::testing::AssertionFailure() << "no room for " << count;
    if (const auto held = holds(cache.view(id), tokens, done); !held) return held;
    run(cache.view(id), cache.captures(id), tokens, done, count);
    const Status status =
        cache.commit_step(id, std::span(tokens).subspan(static_cast<size_t>(done), static_cast<size_t>(count)));
    if (!status.is_ok()) return ::testing::AssertionFailure() << status.message();
    return ::testing::AssertionSuccess();
  }

  // The rest of `tokens` in steps of `chunk`.
  ::testing::AssertionResult run_to_end(HybridCache& cache, SeqId id, const std::vector<TokenId>& tokens,
                                        int64_t chunk = 1 << 30) const {
    const auto length = static_cast<int64_t>(tokens.size());
    while (cache.length(id) < length) {
      const auto done = step(cache, id, tokens, std::min(chunk, length - cache.length(id)));
      if (!done) return done;
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static std::vector<uint64_t> prefixes(const std::vector<TokenId>& tokens, int64_t length) {
    std::vector<uint64_t> prefix = {1};
    for (int64_t p = 0; p < length; ++p) {
      prefix.push_back(mix(prefix.back(), static_cast<uint64_t>(tokens[static_cast<size_t>(p)].value)));
    }
    return prefix;
  }
  static uint64_t key(const std::vector<uint64_t>& prefix, int64_t length, size_t layer) {
    return mix(prefix[static_cast<size_t>(length)], layer) | 1;
  }
  static float element(uint64_t key, int64_t i) { return static_cast<float>((key >> (8 * (i % 8))) & 255); }
  std::byte* row(const MlaLatent& latent, int64_t p) const {
    return latent.pages[static_cast<size_t>(p / latent.page_tokens)] +
           p % latent.page_tokens * layout_.latent_row_bytes();
  }
  bool is(const void* stored, int64_t count, uint64_t key) const {
    std::vector<float> values(static_cast<size_t>(count));
    load_floats(stored, layout_.dtype, values);
    for (int64_t i = 0; i < count; ++i) {
      if (values[static_cast<size_t>(i)] != (key == 0 ? 0.f : element(key, i))) return false;
    }
    return true;
  }
  void write(void* stored, int64_t count, uint64_t key) const {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(element(key, i));
    store_floats(values, layout_.dtype, stored);
  }
  void write_state(KdaState& state, const std::vector<uint64_t>& prefix, int64_t position, size_t layer) const {
    write(state.recurrent, layout_.recurrent_elements(), key(prefix, position, layer));
    write(state.conv, layout_.conv_elements(), key(prefix, position, layer + 1000));
    state.position = position;
    ++state.state_version;
  }

  CacheLayout layout_;
};

}  // namespace tandem::test
