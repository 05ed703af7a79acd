// tandem-train pretrain: a model from token shards, as its recipe says.
#include "command.h"
#include "training_command.h"

namespace tandem::app {

void register_pretrain(CLI::App& app, int& exit_code) {
  register_training(app, exit_code, train::RunKind::kPretrain, "pretrain", "Train a model on token shards",
                    "Ctrl-C finishes the step and writes a checkpoint; --resume goes on from it.\n"
                    "Example:\n  tandem-train pretrain recipes/tiny/pretrain.json --set optimizer.learning_rate=0.01");
}

}  // namespace tandem::app
