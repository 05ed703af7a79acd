#include "engine/doctor/disk_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/cat.h"
#include "stream/direct_reader.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kParts = 8;          // of a pass, whose rates give its noise
constexpr double kLeastNoise = 0.15;  // two runs on an idle drive differ by as much
constexpr double kMostNoise = 0.5;    // beyond it a pass says nothing
constexpr uint64_t kMostMemoryBytes = uint64_t{384} << 20;
constexpr double kLinkSlack = 1.02;  // clocks and rounding

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

uint64_t next_random(uint64_t& state) {  // splitmix64 (Steele, Lea, Flood)
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

struct Block {
  uint32_t file = 0;
  uint64_t offset = 0;
};

struct Rate {
  uint64_t blocks = 0;
  double gb_s = 0.0;
  double spread = 0.0;  // of its parts: half of (largest − smallest) over the median
};

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

class Probe {
 public:
  Probe(std::span<const std::string> paths, const DiskProbeOptions& options,
        FunctionRef<void(const std::string&)> progress)
      : paths_(paths), options_(options), progress_(progress), block_bytes_(direct_ceil(options.block_bytes)) {}

  Result<DiskProbe> run() {
    Result<std::unique_ptr<DirectReader>> reader = open_reader(1);
    if (!reader.is_ok()) return reader.status();
    probe_.method = reader.value()->description();
    bypasses_cache_ = reader.value()->bypasses_page_cache();
    if (!bypasses_cache_) probe_.method += ", dropped before each pass (posix_fadvise)";
    probe_.block_bytes = block_bytes_;
    collect_blocks(*reader.value());
    reader.value().reset();

    std::vector<unsigned> depths = options_.queue_depths;
    while (depths.size() > 1 && depths.back() * block_bytes_ > kMostMemoryBytes) depths.pop_back();
    const size_t passes = depths.size() + 1;
    const size_t wanted = std::max(static_cast<size_t>(options_.pass_bytes / block_bytes_), 4 * kParts);
    const size_t per_pass = std::min(blocks_.size() / passes, wanted);
    if (per_pass < 2 * kParts) return std::move(probe_);
    // The sequential pass takes the first blocks; the random ones take the others, shuffled.
    uint64_t state = options_.seed;
    for (size_t i = blocks_.size() - 1; i > per_pass; --i) {
      std::swap(blocks_[i], blocks_[per_pass + next_random(state) % (i - per_pass + 1)]);
    }
    TANDEM_RETURN_IF_ERROR(measure(false, depths.back(), std::span(blocks_).first(per_pass)));
    for (size_t d = 0; d < depths.size(); ++d) {
      const auto blocks = std::span(blocks_).subspan((d + 1) * per_pass, per_pass);
      TANDEM_RETURN_IF_ERROR(measure(true, depths[d], blocks));
    }
    conclude();
    return std::move(probe_);
  }

 private:
  Result<std::unique_ptr<DirectReader>> open_reader(unsigned queue_depth) const {
    DirectReaderOptions reader;
    reader.queue_depth = queue_depth;
    return DirectReader::open(paths_, reader);
  }

  void collect_blocks(const DirectReader& reader) {
    for (uint32_t file = 0; file < paths_.size(); ++file) {
      for (uint64_t offset = 0; offset + block_bytes_ <= reader.file_bytes(file); offset += block_bytes_) {
        blocks_.push_back({file, offset});
      }
    }
  }

  void drop_from_cache() const {
    for (const std::string& path : paths_) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) continue;
      ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
      ::close(fd);
    }
  }

  // Reads blocks in order, `queue_depth` at a time, and begins none after `seconds`.
  Result<Rate> read(unsigned queue_depth, std::span<const Block> blocks, double seconds) {
    if (!bypasses_cache_) drop_from_cache();
    Result<std::unique_ptr<DirectReader>> opened = open_reader(queue_depth);
    if (!opened.is_ok()) return opened.status();
    DirectReader& reader = *opened.value();
    const std::unique_ptr<std::byte, FreeMemory> memory(
        static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, queue_depth * block_bytes_)));
    if (memory == nullptr) return Status::exhausted(cat("no memory for ", queue_depth, " blocks of ", block_bytes_));
    std::vector<double> finished;  // when each block was there
    std::vector<ReadCompletion> done;
    size_t next = 0;
    const Clock::time_point start = Clock::now();
    const auto submit = [&](uint64_t slot) {
      const Block& block = blocks[next++];
      reader.submit({block.file, block.offset, {memory.get() + slot * block_bytes_, block_bytes_}, slot});
    };
    for (uint64_t slot = 0; slot < queue_depth && next < blocks.size(); ++slot) submit(slot);
    while (reader.num_pending() > 0) {
      done.clear();
      reader.wait(done);
      for (const ReadCompletion& completion : done) {
        if (!completion.status.is_ok()) return completion.status;
        finished.push_back(seconds_since(start));
        const bool enough = finished.back() >= seconds && next >= 2 * kParts;
        if (next < blocks.size() && !enough) submit(completion.tag);
      }
    }
    return rate_of(finished);
  }

  Rate rate_of(const std::vector<double>& finished) const {
    Rate rate;
    rate.blocks = finished.size();
    const auto bytes = static_cast<double>(block_bytes_);
    rate.gb_s = bytes * static_cast<double>(finished.size()) / finished.back() / 1e9;
    std::vector<double> parts;
    size_t begin = 0;
    for (size_t part = 1; part <= kParts; ++part) {
      const size_t end = finished.size() * part / kParts;
      const double from = begin == 0 ? 0.0 : finished[begin - 1];
      if (end > begin && finished[end - 1] > from) {
        parts.push_back(bytes * static_cast<double>(end - begin) / (finished[end - 1] - from) / 1e9);
      }
      begin = end;
    }
    std::sort(parts.begin(), parts.end());
    // The quarter at each end is left out: one hiccup is no noise of the whole.
    if (parts.size() >= 4) {
      const size_t quarter = parts.size() / 4;
      rate.spread = (parts[parts.size() - 1 - quarter] - parts[quarter]) / 2 / parts[parts.size() / 2];
    }
    return rate;
  }

  Status measure(bool random, unsigned queue_depth, std::span<const Block> blocks) {
    const std::string what = cat(random ? "random" : "sequential", " reads, ", queue_depth, " in flight");
    progress_(what);
    const Result<Rate> first = read(queue_depth, blocks, options_.pass_seconds);
    if (!first.is_ok()) return first.status();
    progress_(cat(what, ", repeated"));
    // As many as before, however long they take.
    const Result<Rate> repeat = read(queue_depth, blocks.first(first.value().blocks), 1e9);
    if (!repeat.is_ok()) return repeat.status();
    DiskPass pass;
    pass.random = random;
    pass.queue_depth = queue_depth;
    pass.bytes = first.value().blocks * block_bytes_;
    pass.gb_s = first.value().gb_s;
    pass.repeat_gb_s = repeat.value().gb_s;
    pass.noise = std::clamp(2 * std::max(first.value().spread, repeat.value().spread), kLeastNoise, kMostNoise);
    probe_.passes.push_back(pass);
    return Status::ok();
  }

  void distrust(std::string why) {
    probe_.trusted = false;
    probe_.distrust += cat(probe_.distrust.empty() ? "" : "; ", why);
  }

  static std::string words_of(const DiskPass& pass) {
    return cat(pass.random ? "random" : "sequential", " reads with ", pass.queue_depth, " in flight");
  }

  void conclude() {
    const DiskPass* worst = nullptr;  // the pass that a repetition changed most
    int64_t changed = 0;
    const auto ratio = [](const DiskPass& pass) {
      return std::max(pass.gb_s, pass.repeat_gb_s) / std::min(pass.gb_s, pass.repeat_gb_s);
    };
    for (const DiskPass& pass : probe_.passes) {
      if (!pass.agrees()) {
        ++changed;
        if (worst == nullptr || ratio(pass) > ratio(*worst)) worst = &pass;
      }
      if (options_.link_gb_s > 0 && pass.gb_s > options_.link_gb_s * kLinkSlack) {
        distrust(cat(words_of(pass), " gave ", static_cast<float>(pass.gb_s), " GB/s, above the ",
                     static_cast<float>(options_.link_gb_s), " GB/s that the drive's link carries"));
      }
      if (!pass.random) {
        probe_.sequential_gb_s = pass.gb_s;
      } else if (pass.gb_s > probe_.random_gb_s) {
        probe_.random_gb_s = pass.gb_s;
        probe_.best_queue_depth = pass.queue_depth;
      }
    }
    if (worst == nullptr) return;
    distrust(cat(changed, " of ", probe_.passes.size(), " passes were another speed when they were repeated, ",
                 words_of(*worst), " ", static_cast<float>(worst->gb_s), " GB/s and then ",
                 static_cast<float>(worst->repeat_gb_s), ": a cache on the way, or other work on the drive"));
  }

  std::span<const std::string> paths_;
  const DiskProbeOptions& options_;
  FunctionRef<void(const std::string&)> progress_;
  const uint64_t block_bytes_;
  bool bypasses_cache_ = true;
  std::vector<Block> blocks_;
  DiskProbe probe_;
};

}  // namespace

bool rates_agree(double first_gb_s, double second_gb_s, double noise) {
  if (!(first_gb_s > 0) || !(second_gb_s > 0)) return false;
  return std::max(first_gb_s, second_gb_s) <= std::min(first_gb_s, second_gb_s) * (1 + noise);
}

bool DiskPass::agrees() const { return rates_agree(gb_s, repeat_gb_s, noise); }

Result<DiskProbe> probe_disk(std::span<const std::string> paths, const DiskProbeOptions& options,
                             FunctionRef<void(const std::string& doing)> progress) {
  if (options.block_bytes == 0 || options.queue_depths.empty() || options.queue_depths.front() == 0) {
    return Status::invalid("a disk probe needs a block size and queue depths of at least 1");
  }
  return Probe(paths, options, progress).run();
}

}  // namespace tandem
