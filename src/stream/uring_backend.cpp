#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/cat.h"
#include "base/check.h"
#include "stream/read_backend.h"

namespace tandem {
namespace {

class UringBackend final : public ReadBackend {
 public:
  UringBackend() = default;
  UringBackend(const UringBackend&) = delete;
  UringBackend& operator=(const UringBackend&) = delete;
  ~UringBackend() override {
    // What is under way writes into memory of others, which may be gone once this returns.
    std::vector<std::pair<uint32_t, int64_t>> ignored;
    while (ready_ && under_way_ > 0) collect(1.0, ignored);
    if (ready_) io_uring_queue_exit(&ring_);
  }

  Status init(unsigned depth) {
    const int error = io_uring_queue_init(depth, &ring_, 0);
    if (error < 0) return Status::unsupported(cat("io_uring: ", std::strerror(-error)));
    ready_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    if (probe != nullptr) io_uring_free_probe(probe);
    return can_read ? Status::ok() : Status::unsupported("io_uring: this kernel's has no plain reads");
  }

  std::string_view name() const override { return "io_uring"; }

  void start(uint32_t id, int fd, uint64_t offset, void* memory, uint64_t num_bytes) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      flush();
      entry = io_uring_get_sqe(&ring_);
    }
    TANDEM_CHECK(entry != nullptr, "more reads than the ring has entries");
    io_uring_prep_read(entry, fd, memory, static_cast<unsigned>(num_bytes), offset);
    io_uring_sqe_set_data64(entry, id);
    ++under_way_;
  }

  // EAGAIN and EBUSY leave entries in the ring: the next call tries again.
  void flush() override {
    if (io_uring_sq_ready(&ring_) > 0) (void)io_uring_submit(&ring_);
  }

  void collect(double wait_seconds, std::vector<std::pair<uint32_t, int64_t>>& results) override {
    flush();
    if (take_answers(results) > 0 || under_way_ == 0 || wait_seconds <= 0.0) return;
    __kernel_timespec limit = {};
    limit.tv_sec = static_cast<int64_t>(wait_seconds);
    limit.tv_nsec = static_cast<long long>((wait_seconds - static_cast<double>(limit.tv_sec)) * 1e9);
    io_uring_cqe* answer = nullptr;
    // A signal or the time's end: the caller looks at the clock and comes again.
    (void)io_uring_wait_cqe_timeout(&ring_, &answer, &limit);
    take_answers(results);
  }

 private:
  size_t take_answers(std::vector<std::pair<uint32_t, int64_t>>& results) {
    size_t count = 0;
    io_uring_cqe* answer = nullptr;
    while (io_uring_peek_cqe(&ring_, &answer) == 0) {
      if (answer->user_data != LIBURING_UDATA_TIMEOUT) {
        results.emplace_back(static_cast<uint32_t>(answer->user_data), answer->res);
        --under_way_;
        ++count;
      }
      io_uring_cqe_seen(&ring_, answer);
    }
    return count;
  }

  io_uring ring_ = {};
  bool ready_ = false;
  int64_t under_way_ = 0;
};

}  // namespace

Result<std::unique_ptr<ReadBackend>> make_uring_backend(unsigned depth) {
  auto backend = std::make_unique<UringBackend>();
  TANDEM_RETURN_IF_ERROR(backend->init(depth));
  return std::unique_ptr<ReadBackend>(std::move(backend));
}

}  // namespace tandem
