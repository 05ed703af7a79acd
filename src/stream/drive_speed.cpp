#include "stream/drive_speed.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "base/cat.h"
#include "stream/slot_memory.h"

namespace tandem {
namespace {

// Places of chance: a file by its number of places, then a place in it.
class Places {
 public:
  Places(const DirectReader& reader, size_t num_files, uint64_t read_bytes) : read_bytes_(read_bytes) {
    for (uint32_t file = 0; file < num_files; ++file) {
      total_ += reader.file_bytes(file) / read_bytes;
      ends_.push_back(total_);
    }
  }
  uint64_t total() const { return total_; }

  ReadRequest draw(std::span<std::byte> memory, uint64_t tag) {
    const uint64_t place = random_() % total_;
    const auto file = static_cast<uint32_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
    const uint64_t first = file == 0 ? 0 : ends_[file - 1];
    return {file, direct_floor((place - first) * read_bytes_), memory, tag};
  }

 private:
  uint64_t read_bytes_;
  uint64_t total_ = 0;
  std::vector<uint64_t> ends_;
  std::mt19937_64 random_{1};  // any seed: it only spreads the reads
};

}  // namespace

Result<DriveSpeed> measure_drive_speed(std::span<const std::string> paths, uint64_t read_bytes, double seconds,
                                       const DirectReaderOptions& options) {
  using Clock = std::chrono::steady_clock;
  Result<std::unique_ptr<DirectReader>> opened = DirectReader::open(paths, options);
  if (!opened.is_ok()) return opened.status();
  const uint64_t bytes = std::max(direct_ceil(read_bytes), kDirectAlignment);
  Result<SlotMemory> memory = SlotMemory::create(options.queue_depth, bytes);
  if (!memory.is_ok()) return memory.status();
  const std::unique_ptr<DirectReader> reader = std::move(opened).value();
  Places places(*reader, paths.size(), bytes);
  if (places.total() == 0) return Status::invalid(cat("no file holds a read of ", bytes, " bytes"));

  const Clock::time_point start = Clock::now();
  const auto elapsed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  for (int64_t slot = 0; slot < memory.value().num_slots(); ++slot) {
    reader->submit(places.draw(memory.value().slot(slot), static_cast<uint64_t>(slot)));
  }
  std::vector<ReadCompletion> done;
  while (reader->num_pending() > 0) {
    done.clear();
    reader->wait(done);
    const bool goes_on = elapsed() < seconds;
    for (const ReadCompletion& completion : done) {
      TANDEM_RETURN_IF_ERROR(completion.status);
      if (!goes_on) continue;
      reader->submit(places.draw(memory.value().slot(static_cast<int64_t>(completion.tag)), completion.tag));
    }
  }
  DriveSpeed speed;
  speed.bytes_per_second = static_cast<double>(reader->stats().bytes) / elapsed();
  speed.reads = static_cast<int64_t>(reader->stats().reads);
  speed.is_cache_free = reader->bypasses_page_cache();
  return speed;
}

}  // namespace tandem
