// tests/evaluate/small_model.h: a random K3 of a few hundred thousand parameters with a toy tokenizer, made once.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/thread_pool.h"
#include "engine/loaded_model.h"
#include "support/golden.h"
#include "support/temp_folder.h"
#include "weights/random_init.h"

namespace tandem::test {

class SmallModel {
 public:
  static SmallModel& get() {
    static SmallModel model;
    return model;
  }
  LoadedModel& engine() { return *engine_; }
  const Tokenizer& tokenizer() { return *engine_->tokenizer().value(); }
  std::string path(std::string_view name) const { return folder_.path(name); }

 private:
  SmallModel() {
    auto config = nlohmann::ordered_json::parse(read_text(data_path("golden/k3-tiny/config.json")));
    config.erase("vision_config");
    config["text_config"]["vocab_size"] = 1024;
    config["text_config"]["hidden_size"] = 64;
    config["text_config"]["num_hidden_layers"] = 5;
    config["text_config"]["linear_attn_config"]["kda_layers"] = {1, 2};
    config["text_config"]["linear_attn_config"]["full_attn_layers"] = {3, 4, 5};
    ThreadPool pool(1);
    const auto made = init_random_checkpoint(config.dump(), "test configuration", path("model"), {.seed = 5}, pool,
                                             [](uint64_t, uint64_t) {});
    EXPECT_TRUE(made.is_ok()) << made.status().message();
    auto engine = LoadedModel::load(path("model"), {});
    EXPECT_TRUE(engine.is_ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }

  TempFolder folder_;  // outlives the model
  std::unique_ptr<LoadedModel> engine_;
};

}  // namespace tandem::test
