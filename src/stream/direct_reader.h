// stream/direct_reader.h: asynchronous reads of whole blocks from several files, past the page cache.
//
//   Reads go through io_uring with O_DIRECT, up to `queue_depth` in flight on each drive (files are grouped by device).
//   Where the kernel or a sandbox refuses io_uring, threads with pread do the same work; where a file system refuses
//   O_DIRECT, its files are read through the page cache and dropped from it afterwards. description() says which.
//   A short read is continued, EINTR and EAGAIN are tried again. Everything else ends the request with a Status that
//   names the file, the offset and the bytes: an error of the drive, a file that ends early, no answer for
//   `stall_seconds`, and what is queued behind it. No request is lost: each that was submitted completes exactly once,
//   with its tag. Source: io_uring by way of liburing (Axboe, "Efficient IO with io_uring"). Threading: one thread (the
//   one that opened it, or any other, one at a time).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "stream/direct_file.h"

namespace tandem {

class ReadBackend;

// Offset, length and memory are multiples of kDirectAlignment. A length may reach past the end of the file, as it must
// when the file's length is not a multiple: what lies behind the end is left as it was.
struct ReadRequest {
  uint32_t file = 0;  // index into the paths of open()
  uint64_t offset = 0;
  std::span<std::byte> memory;
  uint64_t tag = 0;  // the caller's, distinct among the requests that are pending
};

struct ReadCompletion {
  uint64_t tag = 0;
  Status status;
  // The drive may still write into the request's memory: it never answered. The memory must not be used again.
  bool memory_lost = false;
};

// For tests: what the world does to one attempt to read. The attempt itself is carried out first.
struct ReadFault {
  enum class Kind { kNone, kShort, kError, kStall, kCorrupt };
  Kind kind = Kind::kNone;
  uint64_t bytes = 0;  // kShort: bytes reported at most; kCorrupt: index of the byte that is inverted
  int error = 0;       // kError: errno
};
struct ReadAttempt {
  uint32_t file = 0;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
  int64_t number = 0;  // of all attempts of this reader
};
using ReadFaults = std::function<ReadFault(const ReadAttempt&)>;

struct DirectReaderOptions {
  enum class Backend { kBest, kThreads };
  Backend backend = Backend::kBest;
  unsigned queue_depth = 32;  // reads in flight on each drive
  unsigned ahead_depth = 32;  // and how many of them one that is not urgent may meet, itself included
  double stall_seconds = 30.0;
  ReadFaults faults;  // empty: none
};

class DirectReader {
 public:
  struct Stats {
    uint64_t reads = 0;  // completed requests
    uint64_t bytes = 0;  // of them, less what lies behind the ends of files
    uint64_t retries = 0;
    double busy_seconds = 0.0;  // with at least one read in flight, as far as it was looked at
    double wait_seconds = 0.0;  // in wait()
  };

  // kNotFound or kIo for a file that cannot be opened; kInvalidArgument without a file, or for a queue depth of 0.
  static Result<std::unique_ptr<DirectReader>> open(std::span<const std::string> paths,
                                                    const DirectReaderOptions& options = {});
  ~DirectReader();  // waits for what is in flight
  DirectReader(const DirectReader&) = delete;
  DirectReader& operator=(const DirectReader&) = delete;

  uint64_t file_bytes(uint32_t file) const { return files_[file].size_bytes; }
  int64_t num_drives() const { return static_cast<int64_t>(drives_.size()); }
  bool bypasses_page_cache() const;
  const DirectReaderOptions& options() const { return options_; }
  std::vector<std::string> paths() const;
  // "io_uring, O_DIRECT, 2 drives"; "threads (io_uring: Operation not permitted), page cache".
  std::string description() const;

  // Queues the request behind the others of its kind; urgent ones are read first, and a drive that has `ahead_depth`
  // reads in flight gets no other. Never blocks.
  void submit(const ReadRequest& request, bool urgent = true);
  // A request that is queued as not urgent becomes urgent. Nothing when it is under way or done.
  void promote(uint64_t tag);
  // Takes back a request that is queued and not urgent: it never completes. False when it is under way, done or urgent.
  bool cancel(uint64_t tag);
  int64_t num_pending() const { return pending_; }

  // Appends what has completed; wait() returns with at least one when anything is pending. Their number.
  size_t poll(std::vector<ReadCompletion>& done);
  size_t wait(std::vector<ReadCompletion>& done);

  const Stats& stats() const { return stats_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Flight {  // a request that was handed to the backend
    ReadRequest request;
    uint64_t done_bytes = 0;
    Clock::time_point started;
    bool used = false;
    bool abandoned = false;  // reported as stalled; the slot is kept until the backend lets go of it
    bool ignored = false;    // a fault of a test: the answer came and counts as none
  };
  struct Drive {
    uint64_t device = 0;
    unsigned in_flight = 0;
    bool stalled = false;  // a read went without an answer, and none has come since
    std::deque<ReadRequest> urgent, other;
  };

  DirectReader(std::vector<DirectFile> files, std::unique_ptr<ReadBackend> backend, std::string backend_note,
               DirectReaderOptions options);
  Drive& drive_of(uint32_t file) { return drives_[drive_of_file_[file]]; }
  void start_queued();
  void start_attempt(uint32_t id);
  size_t collect(std::vector<ReadCompletion>& done, bool block);
  void handle_result(uint32_t id, int64_t result, std::vector<ReadCompletion>& done);
  void complete(uint32_t id, Status status, std::vector<ReadCompletion>& done);
  void release(uint32_t id);
  void release_late(uint32_t id);
  void release_ignored();
  void find_stalled(std::vector<ReadCompletion>& done);
  void fail_queued(std::vector<ReadCompletion>& done);
  int64_t inject_fault(const Flight& flight, int64_t result, bool& ignored);
  std::string place(const ReadRequest& request) const;
  double seconds_to_deadline() const;

  std::vector<DirectFile> files_;
  std::vector<Drive> drives_;
  std::vector<uint32_t> drive_of_file_;
  std::unique_ptr<ReadBackend> backend_;
  std::string backend_note_;
  DirectReaderOptions options_;
  std::vector<Flight> flights_;
  std::vector<uint32_t> free_flights_;
  std::vector<std::pair<uint32_t, int64_t>> results_;  // scratch of collect()
  int64_t pending_ = 0;
  int64_t live_ = 0;       // flights that have not been reported
  int64_t abandoned_ = 0;  // flights that were reported as stalled and may still be answered
  int64_t attempts_ = 0;
  Clock::time_point busy_since_;
  Stats stats_;
};

}  // namespace tandem
