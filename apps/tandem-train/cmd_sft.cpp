// tandem-train sft: fine-tunes a run on chat: loss where the shards' masks say, MXFP4 experts as they will be exported.
#include "command.h"
#include "training_command.h"

namespace tandem::app {

void register_sft(CLI::App& app, int& exit_code) {
  register_training(app, exit_code, train::RunKind::kSft, "sft", "Fine-tune a run, with loss masks and MXFP4 experts",
                    "The recipe's init.from names the run or model folder to start from.\n"
                    "Example:\n  tandem-train sft recipes/nano/sft.json --resume");
}

}  // namespace tandem::app
