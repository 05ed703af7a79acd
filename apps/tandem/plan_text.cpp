#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "plan_output.h"

namespace tandem::app {
namespace {

std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string bytes(double amount) { return amount_text(amount, "B"); }
std::string bytes(int64_t amount) { return bytes(static_cast<double>(amount)); }

// 82432 as 82,432.
std::string grouped(int64_t n) {
  std::string text = fmt::format("{}", n);
  for (size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, 1, ',');
  }
  return text;
}

std::string rate_text(double per_second) {
  return per_second >= 100 ? fmt::format("{:.0f}", per_second) : three_digits(per_second);
}

class Page {
 public:
  template <class... Args>
  void row(std::string_view label, fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), "{:<17}", label);
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  // An amount, and what it is.
  template <class... Args>
  void part(std::string_view label, const std::string& amount, fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), "  {:<15}{:>9}   ", label, amount);
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void blank() { text_ += '\n'; }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

std::string machine_text(const PlanOptions& options) {
  const Machine& machine = options.machine;
  std::string text = machine.name;
  const auto add = [&](std::string_view what, std::optional<double> value, std::string_view unit) {
    text += fmt::format(", {} {}", what, value ? amount_text(*value, unit) : "not known");
  };
  add(machine.is_gpu ? "GPU memory" : "RAM", machine.memory_bytes, "B");
  add("reads", machine.memory_rate, "B/s");
  add("computes", machine.flops_rate, "FLOP/s");
  if (machine.is_gpu) {
    text += fmt::format(", host memory {}", bytes(machine.host_bytes));
    add("link", machine.host_rate, "B/s");
  }
  add("disk", machine.disk_rate, "B/s");
  return text;
}

// The groups of the trunk in falling order.
std::string trunk_parts(const WeightSizes& weights) {
  constexpr std::array kGroups = {TensorGroup::kKda,    TensorGroup::kMla,          TensorGroup::kDenseMlp,
                                  TensorGroup::kRouter, TensorGroup::kSharedExpert, TensorGroup::kLatent,
                                  TensorGroup::kHead};
  std::vector<std::pair<int64_t, std::string_view>> parts;
  for (const TensorGroup g : kGroups) {
    if (weights.group(g).bytes > 0) parts.emplace_back(weights.group(g).bytes, tensor_group_name(g));
  }
  std::sort(parts.rbegin(), parts.rend());
  constexpr size_t kNamed = 4;
  std::string text;
  int64_t rest = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i >= kNamed) {
      rest += parts[i].first;
    } else {
      text += fmt::format("{}{} {}", i == 0 ? "" : ", ", parts[i].second, bytes(parts[i].first));
    }
  }
  return rest == 0 ? text : fmt::format("{}, other {}", text, bytes(rest));
}

// Parameters in billions, or millions below one.
std::string parameters(double count) {
  return count >= 1e9 ? fmt::format("{:.2f} B", count / 1e9) : fmt::format("{:.1f} M", count / 1e6);
}

void put_weights(Page& page, const ModelPlan& plan) {
  const WeightSizes& w = plan.cost.weights;
  const ModelConfig& c = plan.cost.config;
  page.row("weights", "{} in the file; {} parameters, a token meets {} of them", bytes(w.file_bytes),
           parameters(static_cast<double>(w.text().parameters)),
           parameters(static_cast<double>(w.active_parameters(c.num_experts_per_token))));
  page.part("trunk", bytes(w.trunk.bytes + w.head.bytes), "read by every step: {}", trunk_parts(w));
  if (!c.tie_word_embeddings) {
    page.part("embedding", bytes(w.group(TensorGroup::kEmbedding).bytes), "one row a token is read");
  }
  if (w.num_experts() > 0) {
    page.part("experts", bytes(w.routed_bytes()), "{} of {}; a token meets {} in each of {} layers: {}",
              grouped(w.num_experts()), bytes(w.expert.bytes), c.num_experts_per_token, w.moe_layers,
              bytes(w.moe_layers * c.num_experts_per_token * w.expert.bytes));
  }
}

void put_cache(Page& page, const ModelPlan& plan) {
  const CacheLayout& cache = plan.cost.cache;
  const std::string_view type = cache.dtype == DType::kF32 ? "f32" : "bf16";
  const bool fast = plan.cost.path == AttentionPath::kFast;
  page.row("cache", "{} sequence{} of {} tokens, {}; {} path", plan.options.sequences,
           plan.options.sequences == 1 ? "" : "s", grouped(plan.options.context), type, fast ? "fast" : "reference");
  if (fast) {
    page.part("a token", bytes(cache.latent_bytes_per_token()), "{} MLA layers × {} values of {} (KDA layers: none)",
              cache.num_mla_layers(), cache.latent_width, type);
  } else {
    page.part("a token", bytes(cache_bytes_per_token(plan.cost)),
              "{} MLA layers × {} heads × (key {} + value {}): {:.1f} × the latents", cache.num_mla_layers(),
              plan.cost.config.num_attention_heads, plan.cost.config.qk_head_dim(), plan.cost.config.v_head_dim,
              cache_bytes_per_token(plan.cost) / static_cast<double>(cache.latent_bytes_per_token()));
  }
  page.part("a sequence", bytes(cache.state_bytes()), "of any length: {} KDA layers × (state {} + convolution {})",
            cache.num_kda_layers(), bytes(cache.recurrent_bytes()), bytes(cache.conv_bytes()));
  const SequenceMemory& alone = plan.cache.alone;
  page.part("one alone", bytes(alone.total()), "= states {} + latents {} + padding {} (pages of {} tokens)",
            bytes(alone.states), bytes(alone.latents), bytes(alone.padding), plan.cache.page_tokens);
  if (!plan.cache.pool) return;
  const PoolLayout& pool = *plan.cache.pool;
  const SequenceMemory& pooled = plan.cache.pooled;
  page.part("one served", bytes(pooled.total()),
            "= states {} + latents {} + padding {} ({} blocks of {}: {} for states, pages of {} tokens)",
            bytes(pooled.states), bytes(pooled.latents), bytes(pooled.padding), plan.cache.pool_blocks,
            bytes(pool.block_bytes()), pool.num_kda_groups, pool.cache.page_tokens);
}

void put_memory(Page& page, const ModelPlan& plan) {
  const PlanOptions& options = plan.options;
  const Placement& place = plan.placement;
  page.row("memory", "{} with every expert in it: trunk {}, embedding {}, caches {}, scratch {}",
           bytes(plan.resident_memory_bytes), bytes(plan.fixed.trunk), bytes(plan.fixed.embedding),
           bytes(plan.fixed.cache), bytes(plan.fixed.scratch));
  page.part("scratch", bytes(plan.fixed.scratch), "prefill of {} tokens {}, decode of {} {}; the arena reserves {}",
            std::min(options.prefill_chunk, options.prompt), bytes(plan.prefill_scratch.peak_bytes), options.sequences,
            bytes(plan.decode_scratch.peak_bytes),
            bytes(std::max(plan.prefill_scratch.reserved_bytes, plan.decode_scratch.reserved_bytes)));
  if (!place.known) return;
  if (place.experts > 0) {
    const auto percent = [&](int64_t n) { return 100.0 * static_cast<double>(n) / static_cast<double>(place.experts); };
    const std::string host =
        place.host_experts > 0
            ? fmt::format(", {} in host memory ({:.1f} %)", grouped(place.host_experts), percent(place.host_experts))
            : std::string();
    page.part("expert slots", grouped(place.memory_experts), "in {} of {} ({:.1f} %){}, {} stay on disk ({})",
              options.machine.is_gpu ? "GPU memory" : "RAM", bytes(place.memory_bytes), percent(place.memory_experts),
              host, grouped(place.disk_experts), bytes(place.disk_experts * plan.cost.weights.expert.bytes));
  }
  if (place.disk_experts > 0) {
    page.part("all in memory", bytes(plan.resident_memory_bytes), "streaming ends");
    if (plan.memory_to_hide_disk) {
      page.part("disk hides at", bytes(*plan.memory_to_hide_disk), "reads take no longer than the rest of a step");
    }
  }
}

void put_decode(Page& page, const ModelPlan& plan) {
  page.line("{:<9}{:>9}{:>7}{:>9}{:>11}{:>11}{:>13}{:>11}  {}", "decode", "context", "batch", "experts", "GB/step",
            "GFLOP/step", "floor tok/s", "predicted", "limit");
  for (const DecodePoint& point : plan.decode) {
    const auto batch = static_cast<double>(point.batch);
    page.line("{:<9}{:>9}{:>7}{:>9.0f}{:>11}{:>11}{:>13}{:>11}  {}", "", grouped(point.context), point.batch,
              point.distinct_experts, three_digits(point.cost.bytes() / 1e9), three_digits(point.cost.flops() / 1e9),
              point.time ? rate_text(batch / point.time->floor_seconds) : "-",
              point.time ? rate_text(batch / point.time->seconds) : "-",
              point.time ? limit_name(point.time->limit) : "");
  }
}

void put_prefill(Page& page, const ModelPlan& plan) {
  page.line("{:<9}{:>9}{:>7}{:>9}{:>11}{:>11}{:>13}{:>11}  {}", "prefill", "tokens", "", "tok/s", "GB", "TFLOP",
            "floor TTFT", "predicted", "limit");
  for (const PrefillPoint& point : plan.prefill) {
    page.line("{:<9}{:>9}{:>7}{:>9}{:>11}{:>11}{:>13}{:>11}  {}", "", grouped(point.tokens), "",
              point.time ? rate_text(static_cast<double>(point.tokens) / point.time->seconds) : "-",
              three_digits(point.cost.bytes() / 1e9), three_digits(point.cost.flops() / 1e12),
              point.time ? seconds_text(point.time->floor_seconds) : "-",
              point.time ? seconds_text(point.time->seconds) : "-", point.time ? limit_name(point.time->limit) : "");
  }
}

void put_knees(Page& page, const ModelPlan& plan) {
  if (plan.options.machine.memory_rate && plan.options.machine.flops_rate) {
    page.row("knee", "decode at {} tokens: {}; prefill: FLOPs limit from {} tokens a step",
             grouped(plan.options.context),
             plan.decode_knee ? fmt::format("FLOPs limit from batch {:.0f}", std::ceil(*plan.decode_knee))
                              : std::string("memory bandwidth limits at every batch"),
             plan.prefill_knee ? grouped(static_cast<int64_t>(*plan.prefill_knee)) : std::string("no number of"));
  }
  for (const RestorePoint& point : plan.restores) {
    page.row("prefix hit", "{} tokens from {} at {}: {} in {}, computed again {}; pays {}", grouped(point.tokens),
             point.tier, amount_text(point.rate, "B/s"), bytes(point.hit.restore_bytes),
             seconds_text(point.hit.restore_seconds), seconds_text(point.hit.recompute_seconds),
             point.break_even_tokens ? fmt::format("from {} token{}", grouped(*point.break_even_tokens),
                                                   *point.break_even_tokens == 1 ? "" : "s")
                                     : std::string("at no length up to the context"));
  }
}

std::string context_text(int64_t tokens) {
  return tokens >= 1048576 ? fmt::format("{}M", tokens / 1048576) : fmt::format("{}k", tokens / 1024);
}

template <class Value>
void put_table(Page& page, const Comparison& comparison, std::string_view title, Value value) {
  std::string head = fmt::format("{:<26}", title);
  for (const ComparePoint& point : comparison.points[0]) head += fmt::format("{:>11}", context_text(point.context));
  page.line("{}", head);
  for (size_t i = 0; i < kNumAttentions; ++i) {
    std::string line = fmt::format("  {:<24}", attention_name(static_cast<Attention>(i)));
    for (const ComparePoint& point : comparison.points[i]) line += fmt::format("{:>11}", value(point));
    page.line("{}", line);
  }
}

std::string crossing_text(const Crossing& crossing) {
  bool less = crossing.hybrid_less_at_start;
  if (crossing.contexts.empty()) return less ? "hybrid needs less at every context" : "hybrid never needs less";
  std::string text = less ? "hybrid needs less" : "hybrid needs more";
  for (const double context : crossing.contexts) {
    less = !less;
    text += fmt::format(", {} from {} tokens", less ? "less" : "more", grouped(std::llround(context)));
  }
  return text;
}

}  // namespace

std::string amount_text(double amount, std::string_view unit) {
  constexpr std::array<std::string_view, 7> kFactors = {"", "k", "M", "G", "T", "P", "E"};
  size_t factor = 0;
  while (amount >= 999.5 && factor + 1 < kFactors.size()) {
    amount /= 1000;
    ++factor;
  }
  if (factor == 0) return fmt::format("{:.0f} {}", amount, unit);
  return fmt::format("{} {}{}", three_digits(amount), kFactors[factor], unit);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{} µs", three_digits(seconds * 1e6));
  if (seconds < 1) return fmt::format("{} ms", three_digits(seconds * 1e3));
  if (seconds < 300) return fmt::format("{} s", three_digits(seconds));
  return seconds < 7200 ? fmt::format("{} min", three_digits(seconds / 60))
                        : fmt::format("{} h", three_digits(seconds / 3600));
}

std::string plan_text(const ModelPlan& plan) {
  Page page;
  page.row("model", "{} ({})", plan.model,
           plan.from_headers ? "as stored, by its headers" : "as released: no checkpoint was given");
  page.row("machine", "{}", machine_text(plan.options));
  put_weights(page, plan);
  put_cache(page, plan);
  put_memory(page, plan);
  page.blank();
  put_decode(page, plan);
  put_prefill(page, plan);
  put_knees(page, plan);
  for (const std::string& note : plan.notes) page.row("note", "{}", note);
  return page.take();
}

std::string compare_text(const ModelPlan& plan) {
  if (!plan.comparison) return {};
  const Comparison& comparison = *plan.comparison;
  const CompareOptions& options = comparison.options;
  Page page;
  page.row("model", "{}: its widths, with other attentions in its layers", plan.model);
  page.row("machine", "{}", machine_text(plan.options));
  page.row("GQA", "{} key/value heads of {} assumed, every layer", options.gqa_groups, plan.cost.config.v_head_dim);
  page.row("DSA", "MLA in every layer, indexer of {} heads × {}, {} B a key, {} tokens picked", options.indexer_heads,
           options.indexer_head_dim, options.indexer_key_bytes, grouped(options.top_k));
  page.blank();
  page.line("{:<26}{:>13}{:>14}{:>16}", "", "parameters", "cache/token", "cache/sequence");
  for (size_t i = 0; i < kNumAttentions; ++i) {
    page.line("  {:<24}{:>13}{:>14}{:>16}", attention_name(static_cast<Attention>(i)),
              parameters(comparison.parameters[i]), bytes(comparison.bytes_per_token[i]),
              bytes(comparison.bytes_per_sequence[i]));
  }
  put_table(page, comparison, "cache memory", [](const ComparePoint& p) { return bytes(p.cache_bytes); });
  put_table(page, comparison, "cache traffic, a token", [](const ComparePoint& p) { return bytes(p.traffic_bytes); });
  put_table(page, comparison, "attention FLOPs, a token",
            [](const ComparePoint& p) { return amount_text(p.attention_flops, ""); });
  if (comparison.points[0][0].tpot_seconds) {
    put_table(page, comparison, "TTFT", [](const ComparePoint& p) { return seconds_text(*p.ttft_seconds); });
    put_table(page, comparison, fmt::format("TPOT, batch {:.0f}", comparison.sequences),
              [](const ComparePoint& p) { return seconds_text(*p.tpot_seconds); });
  }
  page.blank();
  for (const Crossing& crossing : comparison.crossings) {
    page.row(crossing.quantity, "against {:<9} {}", attention_name(crossing.other), crossing_text(crossing));
  }
  for (const std::string& note : plan.notes) page.row("note", "{}", note);
  return page.take();
}

}  // namespace tandem::app
