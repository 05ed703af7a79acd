#include "evaluate/compressors.h"

#include "base/cat.h"
#include "evaluate/child_process.h"

namespace tandem {

std::vector<CompressedSize> compress_with_programs(std::string_view text) {
  // One thread each: the result must not depend on the number of cores.
  const std::vector<std::string> commands[] = {{"xz", "-9e", "-T1", "-c"},
                                               {"zstd", "-19", "--long", "-T1", "-q", "-c"}};
  const std::string_view names[] = {"xz -9e", "zstd -19 --long"};
  std::vector<CompressedSize> sizes;
  for (size_t i = 0; i < std::size(commands); ++i) {
    CompressedSize size{std::string(names[i]), std::nullopt, ""};
    const Result<ChildResult> result = run_child(commands[i], text);
    if (!result.is_ok()) {
      size.reason = result.status().message();
    } else if (result.value().exit_code != 0) {
      size.reason = cat("exit code ", result.value().exit_code, ": ", result.value().err);
    } else {
      size.bytes = result.value().out.size();
    }
    sizes.push_back(std::move(size));
  }
  return sizes;
}

}  // namespace tandem
