// train/run/tokenizer_files.h: the tokenizer that goes with a run: checked against its model, copied into its folder.
//
//   Training reads token ids alone; a tokenizer that does not fit would be met when the trained model is run. What is
//   checked needs no tokenizer library: the form of both files and that their ids are below the model's vocabulary.
//   No torch in here. Stateless: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem::train {

// kInvalidArgument names the file and what is wrong with it.
Status check_tokenizer_files(const std::string& tokenizer_dir, int64_t vocab_size);

// tiktoken.model, tokenizer_config.json and generation_config.json, which is made from the configuration's ids and the
// token that ends a message where the tokenizer's folder has none. The files were checked.
Status copy_tokenizer_files(const std::string& tokenizer_dir, const std::string& run_dir, std::string_view config_json);

}  // namespace tandem::train
