#include "stream/direct_reader.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cat.h"
#include "base/check.h"
#include "stream/read_backend.h"

namespace tandem {
namespace {

constexpr unsigned kMaxThreads = 16;    // more only queue in the kernel instead of here
constexpr unsigned kMaxInFlight = 256;  // over all drives: entries of the ring
constexpr double kMaxWaitSeconds = 1.0;
constexpr uint64_t kMaxAttemptBytes = uint64_t{1} << 30;  // what one system call takes

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

Result<std::unique_ptr<DirectReader>> DirectReader::open(std::span<const std::string> paths,
                                                         const DirectReaderOptions& options) {
  if (paths.empty()) return Status::invalid("a reader of blocks needs at least one file");
  if (options.queue_depth == 0) return Status::invalid("the queue depth is 0, expected at least 1");
  std::vector<DirectFile> files;
  for (const std::string& path : paths) {
    Result<DirectFile> file = DirectFile::open(path);
    if (!file.is_ok()) return file.status();
    files.push_back(std::move(file).value());
  }
  std::unique_ptr<ReadBackend> backend;
  std::string note;
  if (options.backend == DirectReaderOptions::Backend::kBest) {
    Result<std::unique_ptr<ReadBackend>> uring = make_uring_backend(kMaxInFlight);
    if (uring.is_ok()) {
      backend = std::move(uring).value();
    } else {
      note = cat(" (", uring.status().message(), ")");
    }
  }
  if (backend == nullptr) backend = make_thread_backend(std::min(options.queue_depth, kMaxThreads));
  return std::unique_ptr<DirectReader>(
      new DirectReader(std::move(files), std::move(backend), std::move(note), options));
}

DirectReader::DirectReader(std::vector<DirectFile> files, std::unique_ptr<ReadBackend> backend,
                           std::string backend_note, DirectReaderOptions options)
    : files_(std::move(files)),
      backend_(std::move(backend)),
      backend_note_(std::move(backend_note)),
      options_(std::move(options)) {
  for (const DirectFile& file : files_) {
    const auto found =
        std::find_if(drives_.begin(), drives_.end(), [&](const Drive& drive) { return drive.device == file.device; });
    drive_of_file_.push_back(static_cast<uint32_t>(found - drives_.begin()));
    if (found != drives_.end()) continue;
    drives_.emplace_back();
    drives_.back().device = file.device;
  }
  flights_.resize(kMaxInFlight);
  for (uint32_t id = kMaxInFlight; id > 0; --id) free_flights_.push_back(id - 1);
}

DirectReader::~DirectReader() = default;

bool DirectReader::bypasses_page_cache() const {
  return std::all_of(files_.begin(), files_.end(), [](const DirectFile& file) { return file.direct; });
}

std::vector<std::string> DirectReader::paths() const {
  std::vector<std::string> paths;
  for (const DirectFile& file : files_) paths.push_back(file.path);
  return paths;
}

std::string DirectReader::description() const {
  const auto direct = std::count_if(files_.begin(), files_.end(), [](const DirectFile& file) { return file.direct; });
  std::string cache = "O_DIRECT";
  if (direct == 0) {
    cache = "page cache (the file system refuses O_DIRECT)";
  } else if (direct < static_cast<int64_t>(files_.size())) {
    cache = cat("O_DIRECT for ", direct, " of ", files_.size(), " files, page cache for the others");
  }
  const std::string drives = drives_.size() > 1 ? cat(", ", drives_.size(), " drives") : std::string();
  return cat(backend_->name(), backend_note_, ", ", cache, drives);
}

void DirectReader::submit(const ReadRequest& request, bool urgent) {
  TANDEM_CHECK(request.file < files_.size(), "no such file of this reader");
  TANDEM_CHECK(request.offset % kDirectAlignment == 0 && request.memory.size() % kDirectAlignment == 0 &&
                   reinterpret_cast<uintptr_t>(request.memory.data()) % kDirectAlignment == 0,
               "a read of blocks is aligned");
  TANDEM_CHECK(!request.memory.empty(), "a read of nothing");
  Drive& drive = drive_of(request.file);
  (urgent ? drive.urgent : drive.other).push_back(request);
  ++pending_;
  start_queued();
}

void DirectReader::promote(uint64_t tag) {
  for (Drive& drive : drives_) {
    const auto found = std::find_if(drive.other.begin(), drive.other.end(),
                                    [tag](const ReadRequest& request) { return request.tag == tag; });
    if (found == drive.other.end()) continue;
    drive.urgent.push_back(*found);
    drive.other.erase(found);
    return;
  }
}

bool DirectReader::cancel(uint64_t tag) {
  for (Drive& drive : drives_) {
    const auto found = std::find_if(drive.other.begin(), drive.other.end(),
                                    [tag](const ReadRequest& request) { return request.tag == tag; });
    if (found == drive.other.end()) continue;
    drive.other.erase(found);
    --pending_;
    return true;
  }
  return false;
}

void DirectReader::start_queued() {
  bool started = false;
  for (Drive& drive : drives_) {
    while (!drive.stalled && drive.in_flight < options_.queue_depth && !free_flights_.empty()) {
      std::deque<ReadRequest>& queue = drive.urgent.empty() ? drive.other : drive.urgent;
      if (queue.empty() || (&queue == &drive.other && drive.in_flight >= options_.ahead_depth)) break;
      const uint32_t id = free_flights_.back();
      free_flights_.pop_back();
      Flight& flight = flights_[id];
      flight = Flight{};
      flight.request = queue.front();
      flight.used = true;
      flight.started = Clock::now();
      queue.pop_front();
      ++drive.in_flight;
      if (live_++ == 0) busy_since_ = flight.started;
      start_attempt(id);
      started = true;
    }
  }
  if (started) backend_->flush();
}

void DirectReader::start_attempt(uint32_t id) {
  const Flight& flight = flights_[id];
  // A short answer may end inside a block: that block is read again.
  const uint64_t done = direct_floor(flight.done_bytes);
  const std::span<std::byte> rest = flight.request.memory.subspan(done);
  const uint64_t count = std::min<uint64_t>(rest.size(), kMaxAttemptBytes);
  backend_->start(id, files_[flight.request.file].fd, flight.request.offset + done, rest.data(), count);
}

int64_t DirectReader::inject_fault(const Flight& flight, int64_t result, bool& ignored) {
  const uint64_t done = direct_floor(flight.done_bytes);
  const uint64_t count = std::min<uint64_t>(flight.request.memory.size() - done, kMaxAttemptBytes);
  const ReadFault fault = options_.faults({flight.request.file, flight.request.offset + done, count, attempts_++});
  switch (fault.kind) {
    case ReadFault::Kind::kNone: break;
    case ReadFault::Kind::kShort: return std::min(result, static_cast<int64_t>(fault.bytes));
    case ReadFault::Kind::kError: return -int64_t{fault.error};
    case ReadFault::Kind::kStall: ignored = true; break;
    case ReadFault::Kind::kCorrupt:
      if (fault.bytes < count) flight.request.memory[done + fault.bytes] ^= std::byte{0xff};
      break;
  }
  return result;
}

std::string DirectReader::place(const ReadRequest& request) const {
  return cat(files_[request.file].path, ": reading ", request.memory.size(), " bytes at offset ", request.offset);
}

void DirectReader::release(uint32_t id) {
  Flight& flight = flights_[id];
  --drive_of(flight.request.file).in_flight;
  flight.used = false;
  free_flights_.push_back(id);
}

void DirectReader::release_late(uint32_t id) {
  drive_of(flights_[id].request.file).stalled = false;
  --abandoned_;
  release(id);
}

void DirectReader::complete(uint32_t id, Status status, std::vector<ReadCompletion>& done) {
  Flight& flight = flights_[id];
  if (status.is_ok()) {
    ++stats_.reads;
    stats_.bytes += flight.done_bytes;
    const DirectFile& file = files_[flight.request.file];
    if (!file.direct) {
      // Advice: a refusal costs memory of the page cache, not correctness.
      (void)::posix_fadvise(file.fd, static_cast<off_t>(flight.request.offset),
                            static_cast<off_t>(flight.request.memory.size()), POSIX_FADV_DONTNEED);
    }
  }
  done.push_back({flight.request.tag, std::move(status), flight.abandoned});
  --pending_;
  if (--live_ == 0) stats_.busy_seconds += seconds(Clock::now() - busy_since_);
}

void DirectReader::handle_result(uint32_t id, int64_t result, std::vector<ReadCompletion>& done) {
  Flight& flight = flights_[id];
  if (flight.abandoned) return release_late(id);
  if (options_.faults) {
    result = inject_fault(flight, result, flight.ignored);
    if (flight.ignored) return;
  }
  if (result == -EINTR || result == -EAGAIN) {
    // The deadline of the request goes on: a drive that only ever says "again" is a stalled one.
    ++stats_.retries;
    start_attempt(id);
    return backend_->flush();
  }
  if (result < 0) {
    complete(id, Status::io(cat(place(flight.request), ": ", std::strerror(static_cast<int>(-result)))), done);
    return release(id);
  }
  const uint64_t file_bytes = files_[flight.request.file].size_bytes;
  const uint64_t wanted = std::min<uint64_t>(
      flight.request.memory.size(), file_bytes > flight.request.offset ? file_bytes - flight.request.offset : 0);
  const uint64_t before = flight.done_bytes;
  flight.done_bytes = std::min(direct_floor(before) + static_cast<uint64_t>(result), wanted);
  if (flight.done_bytes == wanted) {
    complete(id, Status::ok(), done);
    return release(id);
  }
  if (flight.done_bytes <= before) {
    complete(id,
             Status::io(cat(place(flight.request), ": the file ends at byte ", flight.request.offset + before,
                            ", expected ", file_bytes, " bytes as when it was opened")),
             done);
    return release(id);
  }
  ++stats_.retries;
  start_attempt(id);
  backend_->flush();
}

void DirectReader::find_stalled(std::vector<ReadCompletion>& done) {
  if (live_ == 0) return;
  const Clock::time_point now = Clock::now();
  for (uint32_t id = 0; id < flights_.size(); ++id) {
    Flight& flight = flights_[id];
    if (!flight.used || flight.abandoned || seconds(now - flight.started) < options_.stall_seconds) continue;
    flight.abandoned = true;
    ++abandoned_;
    drive_of(flight.request.file).stalled = true;
    complete(id, Status::io(cat(place(flight.request), ": no answer for ", options_.stall_seconds, " seconds")), done);
  }
}

// Behind a read without an answer nothing would be answered either.
void DirectReader::fail_queued(std::vector<ReadCompletion>& done) {
  for (Drive& drive : drives_) {
    if (!drive.stalled) continue;
    for (std::deque<ReadRequest>* queue : {&drive.urgent, &drive.other}) {
      for (const ReadRequest& request : *queue) {
        Status status = Status::io(cat(place(request), ": not tried, the drive does not answer"));
        done.push_back({request.tag, std::move(status), false});
        --pending_;
      }
      queue->clear();
    }
  }
}

double DirectReader::seconds_to_deadline() const {
  const Clock::time_point now = Clock::now();
  double least = kMaxWaitSeconds;
  for (const Flight& flight : flights_) {
    if (!flight.used || flight.abandoned) continue;
    least = std::min(least, options_.stall_seconds - seconds(now - flight.started));
  }
  return std::max(least, 0.0);
}

// A test's answer that never came comes late, to whoever asks next.
void DirectReader::release_ignored() {
  for (uint32_t id = 0; options_.faults && id < flights_.size(); ++id) {
    if (flights_[id].used && flights_[id].abandoned && flights_[id].ignored) release_late(id);
  }
}

size_t DirectReader::collect(std::vector<ReadCompletion>& done, bool block) {
  const size_t before = done.size();
  release_ignored();
  if (live_ == 0 && abandoned_ > 0) {  // a drive that answers late is well again
    results_.clear();
    backend_->collect(0.0, results_);
    for (const auto& [id, result] : results_) handle_result(id, result, done);
  }
  start_queued();
  while (live_ > 0) {
    results_.clear();
    backend_->collect(block ? seconds_to_deadline() : 0.0, results_);
    for (const auto& [id, result] : results_) handle_result(id, result, done);
    find_stalled(done);
    start_queued();
    if (!block || done.size() > before) break;
  }
  fail_queued(done);
  return done.size() - before;
}

size_t DirectReader::poll(std::vector<ReadCompletion>& done) { return collect(done, false); }

size_t DirectReader::wait(std::vector<ReadCompletion>& done) {
  const Clock::time_point start = Clock::now();
  const size_t count = collect(done, true);
  stats_.wait_seconds += seconds(Clock::now() - start);
  return count;
}

}  // namespace tandem
