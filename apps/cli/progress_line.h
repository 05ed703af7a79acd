// apps/cli/progress_line.h: how far a command has come, on stderr: one line that is written over on a terminal, a line
// now and then elsewhere.
//   Threading: one thread at a time.
#pragma once

#include <chrono>
#include <string>

namespace tandem::app {

class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Whether it is time for another line: what it says need not be made if not.
  bool is_due() const;
  void show(const std::string& text);
  // The last one of a part: it stays.
  void finish(const std::string& text);
  // On a terminal the line goes: other output follows. What was told elsewhere stays.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  Clock::time_point last_ = Clock::now();
  bool open_ = false;  // the terminal's cursor is on the line
};

}  // namespace tandem::app
