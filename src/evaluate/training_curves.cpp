#include "evaluate/training_curves.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <optional>

#include "base/cat.h"
#include "evaluate/child_process.h"
#include "text/json_value.h"

namespace tandem {
namespace {

constexpr int kPanelWidth = 760, kPanelHeight = 380;  // pixels
constexpr size_t kManyPoints = 200;                   // from here on a running mean is drawn over the values

std::optional<double> number_in(const JsonValue* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_array()) {
    std::optional<double> largest;
    for (const JsonValue& item : value->items()) {
      const std::optional<double> number = number_in(&item);
      if (number) largest = std::max(largest.value_or(*number), *number);
    }
    return largest;
  }
  if (value->kind() != JsonKind::kNumber) return std::nullopt;
  double number = 0;
  std::from_chars(value->text().data(), value->text().data() + value->text().size(), number);
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

void add_line(const JsonValue& line, int64_t step, TrainingCurves& curves) {
  const auto add = [&](const char* key, Curve& curve) {
    if (const auto number = number_in(line.find(key))) curve[step] = *number;
  };
  add("loss", curves.loss);
  add("learning_rate", curves.learning_rate);
  add("grad_norm", curves.grad_norm);
  add("expert_load", curves.expert_load);
  add("expert_load_mean", curves.expert_load_mean);
  if (const JsonValue* window = line.find("expert_load_64"); window != nullptr && window->is_object()) {
    if (const auto number = number_in(window->find("worst"))) curves.expert_load_64[step] = *number;
  }
  add("tokens_per_second", curves.tokens_per_second);
  if (line.find("validation_loss") != nullptr) {
    const JsonValue* data = line.find("data");
    add("validation_loss", curves.validation_loss[data != nullptr && data->is_string() ? data->text() : ""]);
  }
}

// A gnuplot string: in single quotes nothing is expanded. Characters that a name of data need not have are left out.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\'') {
      out += "''";
    } else if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    }
  }
  return out + "'";
}

// The mean of the points around each one.
Curve running_mean(const Curve& curve) {
  const std::vector<std::pair<int64_t, double>> points(curve.begin(), curve.end());
  const size_t half = points.size() / 100;
  std::vector<double> sums = {0};
  for (const auto& point : points) sums.push_back(sums.back() + point.second);
  Curve mean;
  for (size_t i = 0; i < points.size(); ++i) {
    const size_t reach = std::min({half, i, points.size() - 1 - i});  // the same on both sides: the ends stay in place
    const size_t begin = i - reach;
    const size_t end = i + reach + 1;
    mean[points[i].first] = (sums[end] - sums[begin]) / static_cast<double>(end - begin);
  }
  return mean;
}

class Script {
 public:
  struct Line {
    const Curve* curve;
    std::string title;
    bool with_points = false;
    bool is_noisy = true;
  };

  void panel(std::string_view title, const std::vector<Line>& lines, bool logarithmic) {
    static constexpr const char* kColours[] = {"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"};
    std::string plots;
    bool positive = true;
    size_t colour = 0;
    const auto add = [&](const Curve& curve, std::string_view style, std::string_view name) {
      plots += cat(plots.empty() ? "plot " : ", ", block(curve), " with ", style,
                   name.empty() ? " notitle" : cat(" title ", quoted(name)));
    };
    for (const Line& line : lines) {
      if (line.curve->empty()) continue;
      for (const auto& point : *line.curve) positive = positive && point.second > 0;
      const char* rgb = kColours[colour++ % std::size(kColours)];
      const bool is_long = line.is_noisy && line.curve->size() >= kManyPoints && !line.with_points;
      const std::string plain = cat("lines linewidth 2 linecolor rgb ", quoted(rgb));
      if (is_long) {
        add(*line.curve, cat("lines linewidth 1 linecolor rgb ", quoted(cat("#C0", rgb + 1))), "");
        means_.push_back(running_mean(*line.curve));
        add(means_.back(), plain, line.title);
      } else {
        add(*line.curve,
            line.with_points || line.curve->size() == 1
                ? cat("linespoints pointtype 7 pointsize 0.8 linewidth 2 linecolor rgb ", quoted(rgb))
                : plain,
            line.title);
      }
    }
    if (plots.empty()) return;
    ++num_panels_;
    commands_ +=
        cat("set title ", quoted(title), "\n", logarithmic && positive ? "set" : "unset", " logscale y\n", plots, "\n");
  }

  std::string text(std::string_view title) const {
    const int columns = num_panels_ > 1 ? 2 : 1;
    const int rows = (num_panels_ + columns - 1) / columns;
    return cat("set terminal pngcairo noenhanced size ", columns * kPanelWidth, ",", rows * kPanelHeight + 40,
               " font ',11'\n", data_, "set multiplot layout ", rows, ",", columns, " title ", quoted(title),
               "\nset grid linecolor rgb '#bbbbbb'\nset xlabel 'step'\nset key top right\nset format y '%.6g'\n",
               "set lmargin 11\nset rmargin 4\n", commands_, "unset multiplot\n");
  }

 private:
  // The points as a named block; its name.
  std::string block(const Curve& curve) {
    const std::string name = cat("$curve", num_blocks_++);
    data_ += cat(name, " << END_OF_CURVE\n");
    for (const auto& [step, value] : curve) data_ += cat(step, " ", value, "\n");
    data_ += "END_OF_CURVE\n";
    return name;
  }

  std::string data_;
  std::string commands_;
  std::deque<Curve> means_;
  int num_blocks_ = 0;
  int num_panels_ = 0;
};

}  // namespace

bool TrainingCurves::is_empty() const {
  return loss.empty() && learning_rate.empty() && grad_norm.empty() && expert_load.empty() &&
         expert_load_mean.empty() && expert_load_64.empty() && tokens_per_second.empty() &&
         std::ranges::all_of(validation_loss, [](const auto& item) { return item.second.empty(); });
}

Result<TrainingCurves> parse_training_log(std::string_view text, std::string_view origin) {
  TrainingCurves curves;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const bool is_cut_off = end == std::string_view::npos;
    const std::string_view line = text.substr(begin, is_cut_off ? end : end - begin);
    begin = is_cut_off ? text.size() : end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto value = parse_json(line, cat(origin, " line ", number));
    if (!value.is_ok()) {
      if (is_cut_off) break;
      return value.status();
    }
    const auto step = number_in(value.value().find("step"));
    if (!step || *step < 0 || *step > 1e15) {
      return Status::invalid(
          cat(origin, " line ", number, ": expected an object with a \"step\", found ", line.substr(0, 80)));
    }
    add_line(value.value(), static_cast<int64_t>(*step), curves);
  }
  return curves;
}

std::string gnuplot_script(const TrainingCurves& curves, std::string_view title) {
  Script script;
  std::vector<Script::Line> losses = {{&curves.loss, "training"}};
  for (const auto& [data, curve] : curves.validation_loss) {
    losses.push_back({&curve, data.empty() ? "validation" : cat("validation: ", data), true});
  }
  script.panel("loss, nats per token", losses, false);
  script.panel("learning rate", {{&curves.learning_rate, "", false, false}}, false);
  script.panel("expert load, largest over mean",
               {{&curves.expert_load, "worst layer"},
                {&curves.expert_load_mean, "mean of the layers"},
                {&curves.expert_load_64, "worst layer, over 64 steps", true}},
               false);
  script.panel("gradient norm before clipping", {{&curves.grad_norm, ""}}, true);
  script.panel("tokens per second", {{&curves.tokens_per_second, ""}}, false);
  return script.text(title);
}

Result<std::string> draw_training_curves(const TrainingCurves& curves, std::string_view title) {
  if (curves.is_empty()) return Status::invalid("the log has no step with a number to draw");
  auto result = run_child({"gnuplot", "-"}, gnuplot_script(curves, title));
  if (!result.is_ok()) {
    if (result.status().code() != StatusCode::kNotFound) return result.status();
    return Status::not_found("gnuplot: no such program in PATH; Debian has it in gnuplot-nox");
  }
  if (result.value().exit_code != 0 || !result.value().out.starts_with("\x89PNG")) {
    return Status::io(cat("gnuplot ended with exit code ", result.value().exit_code, " and ", result.value().out.size(),
                          " bytes that are no PNG: ", result.value().err));
  }
  return std::move(result.value().out);
}

}  // namespace tandem
