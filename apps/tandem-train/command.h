// apps/tandem-train/command.h: the subcommands of `tandem-train`. Each cmd_<name>.cpp registers one.
#pragma once

#include "command_line.h"

namespace tandem::app {

// Each adds its subcommand; when it is chosen, `exit_code` receives the result.
void register_tokenizer(CLI::App& app, int& exit_code);
void register_corpus(CLI::App& app, int& exit_code);
void register_pretrain(CLI::App& app, int& exit_code);
void register_sft(CLI::App& app, int& exit_code);
void register_check(CLI::App& app, int& exit_code);
void register_export(CLI::App& app, int& exit_code);
void register_eval(CLI::App& app, int& exit_code);
void register_plot(CLI::App& app, int& exit_code);

}  // namespace tandem::app
