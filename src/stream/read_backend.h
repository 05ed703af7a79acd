// stream/read_backend.h: how one attempt to read reaches the kernel: io_uring, or threads with pread.
//
//   An attempt is answered once, with the bytes read or a negative errno. Destruction waits for what is under way.
//   Threading: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tandem {

class ReadBackend {
 public:
  virtual ~ReadBackend() = default;
  virtual std::string_view name() const = 0;
  // At most the depth it was made for are under way at once. A read may begin only with the flush() after it.
  virtual void start(uint32_t id, int fd, uint64_t offset, void* memory, uint64_t num_bytes) = 0;
  virtual void flush() = 0;
  // Appends the answers that are there; without one, waits for the first up to `wait_seconds`.
  virtual void collect(double wait_seconds, std::vector<std::pair<uint32_t, int64_t>>& results) = 0;
};

// kUnsupported, with the reason, where the kernel or a sandbox has no io_uring for this process.
Result<std::unique_ptr<ReadBackend>> make_uring_backend(unsigned depth);
std::unique_ptr<ReadBackend> make_thread_backend(unsigned num_threads);

}  // namespace tandem
