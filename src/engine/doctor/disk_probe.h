// engine/doctor/disk_probe.h: how fast a drive gives a checkpoint's blocks, measured so that the page cache cannot
// answer for it.
//
//   Reads go through stream/direct_reader.h: O_DIRECT, or, where a file system refuses it, the page cache after the
//   files were dropped from it (posix_fadvise); `method` says which. Each pass reads blocks at offsets that no pass
//   before it has read: in ascending order, then at random with 1, 4 and more in flight. Then the same blocks again: a
//   drive reads them as fast as before, a cache on the way reads them faster. A number is trusted when the two agree
//   within what the parts of a pass differ by, and when it is not above what the drive's link carries.
//   Threading: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/result.h"

namespace tandem {

struct DiskProbeOptions {
  uint64_t block_bytes = uint64_t{1} << 20;             // of a read; rounded up to the alignment
  uint64_t pass_bytes = uint64_t{256} << 20;            // about, of one pass, if there are as many
  double pass_seconds = 1.0;                            // the first reading of a pass begins no block after that
  std::vector<unsigned> queue_depths = {1, 4, 16, 32};  // ascending; those whose blocks fill 384 MiB are left out
  double link_gb_s = 0.0;                               // 0: unknown
  uint64_t seed = 1;                                    // of the random offsets
};

struct DiskPass {
  bool random = false;
  unsigned queue_depth = 1;
  uint64_t bytes = 0;
  double gb_s = 0.0;         // the first reading (10^9 bytes a second)
  double repeat_gb_s = 0.0;  // the second
  double noise = 0.0;        // how far the two may be apart, as a share
  bool agrees() const;
};

struct DiskProbe {
  std::string method;  // "io_uring, O_DIRECT"
  uint64_t block_bytes = 0;
  std::vector<DiskPass> passes;  // sequential first; empty: the files are too small for two blocks a pass
  double sequential_gb_s = 0.0;
  double random_gb_s = 0.0;  // at the best queue depth
  unsigned best_queue_depth = 0;
  bool trusted = true;
  std::string distrust;  // why not
};

// `paths` are of one file system. Offsets are never repeated between passes; when blocks run out, passes get shorter.
Result<DiskProbe> probe_disk(std::span<const std::string> paths, const DiskProbeOptions& options,
                             FunctionRef<void(const std::string& doing)> progress);

// Whether the rate of a second reading is explained by the first one's and its noise. Pure; for the probe and its test.
bool rates_agree(double first_gb_s, double second_gb_s, double noise);

}  // namespace tandem
