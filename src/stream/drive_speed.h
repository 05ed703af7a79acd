// stream/drive_speed.h: the ceiling of a stream: what a drive gives for reads of an expert's size at places of chance.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "stream/direct_reader.h"

namespace tandem {

struct DriveSpeed {
  double bytes_per_second = 0.0;
  int64_t reads = 0;
  bool is_cache_free = false;  // false: a file system without O_DIRECT, where the page cache may have answered
};

// Reads of `read_bytes` (rounded up to whole blocks) spread over the files by their lengths, with the options' queue
// depth in flight, for about `seconds`. kInvalidArgument when no file holds one such read.
Result<DriveSpeed> measure_drive_speed(std::span<const std::string> paths, uint64_t read_bytes, double seconds,
                                       const DirectReaderOptions& options);

}  // namespace tandem
