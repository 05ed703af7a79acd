// train/run/run_lock.h: the right to write into a run's folder, which one process has at a time.
//
//   Held on the folder itself, so no file tells of it and a killed process leaves none. On a file system without locks
//   it guards nothing. No torch in here. Threading: one thread at a time.
#pragma once

#include <string>

#include "base/result.h"

namespace tandem::train {

class RunLock {
 public:
  // Makes the folder if need be. kFailedPrecondition while another process holds it.
  static Result<RunLock> take(const std::string& run_dir);
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();  // a folder that it made and that is still empty goes

 private:
  RunLock() = default;

  std::string made_;  // the folder; empty: it was there
  int fd_ = -1;
};

}  // namespace tandem::train
