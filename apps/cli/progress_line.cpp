#include "progress_line.h"

#include <unistd.h>

#include <cstdio>

namespace tandem::app {

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', stderr);
}

bool ProgressLine::is_due() const {
  return Clock::now() - last_ >= (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10'000));
}

void ProgressLine::show(const std::string& text) {
  last_ = Clock::now();
  // \x1b[K: what a longer line has left behind.
  std::fprintf(stderr, terminal_ ? "\r%s\x1b[K" : "%s\n", text.c_str());
  std::fflush(stderr);
  open_ = terminal_;
}

void ProgressLine::finish(const std::string& text) {
  show(text);
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

void ProgressLine::clear() {
  if (open_) std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  open_ = false;
}

}  // namespace tandem::app
