// engine/doctor/disk_checks.h: the drives that hold a checkpoint: what they are and how fast they give its blocks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "engine/doctor/disk_probe.h"
#include "engine/doctor/machine_checks.h"

namespace tandem {

// Bytes of one routed expert as released; of a model without experts a mebibyte: what one read of the probe takes.
uint64_t probe_block_bytes(const std::optional<ModelConfig>& config);

// disk: file_system and read, for each file system that the files lie on. The sum of the trusted random rates of all of
// them (10^9 bytes a second); 0: none was measured.
double check_disks(const std::vector<std::string>& files, const DiskProbeOptions& options, TellCheck tell,
                   FunctionRef<void(const std::string&)> progress);

// A file of random bytes in `folder`, removed with this object.
class ProbeFile {
 public:
  // kResourceExhausted when less than twice the bytes is free.
  static Result<ProbeFile> create(const std::string& folder, uint64_t bytes);
  ProbeFile(ProbeFile&& other) noexcept;
  ProbeFile& operator=(ProbeFile&&) = delete;
  ~ProbeFile();
  const std::string& path() const { return path_; }

 private:
  explicit ProbeFile(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

}  // namespace tandem
