#include "weights/checkpoint.h"

#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/fault_list.h"
#include "weights/mapped_file.h"
#include "weights/safetensors_header.h"
#include "weights/shard_index.h"

namespace tandem {
namespace {

constexpr std::string_view kSingleFileName = "model.safetensors";

struct Shard {
  std::string name;
  MappedFile file;            // kMap: the whole file; kHeadersOnly: nothing once it is parsed
  uint64_t header_bytes = 0;  // JSON only
  uint64_t data_bytes = 0;
  bool readable = false;
};

bool file_exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace

struct Checkpoint::Impl {
  std::string dir;
  Mode mode = Mode::kMap;
  std::vector<Shard> shards;
  std::unordered_map<std::string, uint32_t> shard_by_name;
  std::vector<uint32_t> by_address;  // shards in the order of their mapped addresses; kMap only
  TensorTable tensors;
  uint64_t total_bytes = 0;

  std::string path(std::string_view file) const { return cat(dir, "/", file); }

  // Which shard an index entry means; shards appear in the order in which the index first names them.
  std::optional<uint32_t> shard_of(std::string_view name) {
    if (!shards.empty() && shards[last_shard_].name == name) return last_shard_;
    const auto found = shard_by_name.find(std::string(name));
    if (found == shard_by_name.end()) return std::nullopt;
    last_shard_ = found->second;
    return last_shard_;
  }
  void add_shard(std::string_view name) {
    const auto id = static_cast<uint32_t>(shards.size());
    shards.push_back({});
    shards.back().name = name;
    shard_by_name.emplace(name, id);
  }

  void sort_by_address() {
    for (uint32_t s = 0; s < shards.size(); ++s) by_address.push_back(s);
    std::sort(by_address.begin(), by_address.end(), [this](uint32_t a, uint32_t b) {
      return std::less<>()(shards[a].file.bytes().data(), shards[b].file.bytes().data());
    });
  }

  Status load();
  void collect_shards(std::span<const std::byte> index, ShardIndexSummary& summary, FaultList& faults);
  void open_shard(Shard& shard, FaultList& faults);
  void parse_headers(FaultList& faults);
  void find_duplicates(FaultList& faults) const;
  void compare_with_index(std::span<const std::byte> index, FaultList& faults);
  void compare_total(const ShardIndexSummary& summary, FaultList& faults) const;

 private:
  uint32_t last_shard_ = 0;
};

void Checkpoint::Impl::collect_shards(std::span<const std::byte> index, ShardIndexSummary& summary, FaultList& faults) {
  summary = parse_shard_index(
      index,
      [&](std::string_view tensor, std::string_view shard) {
        if (shard_of(shard)) return;
        if (!is_safe_shard_name(shard)) {
          faults.add(kIndexFileName, ": ", tensor, " is placed in \"", shard,
                     "\": expected the name of a file in the checkpoint's folder");
        } else if (shards.size() >= TensorTable::kMaxShards) {
          faults.add(kIndexFileName, ": more than ", TensorTable::kMaxShards, " shards");
        } else {
          add_shard(shard);
        }
      },
      faults);
}

void Checkpoint::Impl::open_shard(Shard& shard, FaultList& faults) {
  const std::string file_path = path(shard.name);
  auto prefix = MappedFile::open(file_path, kSafetensorsPrefixBytes);
  if (!prefix.is_ok()) {
    const bool missing = prefix.status().code() == StatusCode::kNotFound;
    faults.add(shard.name, missing ? ": the shard is missing" : cat(": ", prefix.status().message()));
    return;
  }
  const uint64_t file_bytes = prefix.value().file_bytes();
  const auto length = read_header_length(prefix.value().bytes(), file_bytes, shard.name, faults);
  if (!length) return;
  const uint64_t front_bytes = kSafetensorsPrefixBytes + *length;
  auto file = MappedFile::open(file_path, mode == Mode::kMap ? MappedFile::kWholeFile : front_bytes);
  if (!file.is_ok()) {
    faults.add(shard.name, ": ", file.status().message());
    return;
  }
  if (file.value().file_bytes() != file_bytes) {
    faults.add(shard.name, ": changed from ", file_bytes, " to ", file.value().file_bytes(), " bytes while opening");
    return;
  }
  shard.file = std::move(file).value();
  shard.header_bytes = *length;
  shard.data_bytes = file_bytes - front_bytes;
  shard.readable = true;
}

void Checkpoint::Impl::parse_headers(FaultList& faults) {
  uint64_t header_bytes = 0;
  for (Shard& shard : shards) {
    open_shard(shard, faults);
    header_bytes += shard.header_bytes;
  }
  if (header_bytes > std::numeric_limits<uint32_t>::max()) {
    faults.add("the shard headers have ", header_bytes, " bytes in all, at most 2^32 - 1 are accepted");
    return;
  }
  tensors.reserve(header_bytes);
  for (size_t s = 0; s < shards.size(); ++s) {
    Shard& shard = shards[s];
    if (!shard.readable) continue;
    const HeaderPlace place{shard.name, static_cast<uint32_t>(s), shard.data_bytes};
    parse_safetensors_header(shard.file.bytes().subspan(kSafetensorsPrefixBytes, shard.header_bytes), place, tensors,
                             faults);
    total_bytes += shard.data_bytes;
    if (mode == Mode::kHeadersOnly) {
      shard.file = MappedFile();
    } else {
      shard.file.drop_pages(0, kSafetensorsPrefixBytes + shard.header_bytes);  // the names are in the table now
    }
  }
  tensors.sort_by_name();
}

void Checkpoint::Impl::find_duplicates(FaultList& faults) const {
  for (int64_t i = 1; i < tensors.size(); ++i) {
    if (tensors.name(i) != tensors.name(i - 1)) continue;
    const std::string& first = shards[tensors.shard(i - 1)].name;
    const std::string& second = shards[tensors.shard(i)].name;
    if (&first == &second) {
      faults.add(first, ": duplicate key ", tensors.name(i), ": the header describes this tensor twice");
    } else {
      faults.add(tensors.name(i), ": in two shards, ", first, " and ", second);
    }
  }
}

// Both ways: what the index places and the headers lack or hold elsewhere; what the headers hold and the index lacks.
void Checkpoint::Impl::compare_with_index(std::span<const std::byte> index, FaultList& faults) {
  std::vector<bool> seen(static_cast<size_t>(tensors.size()));
  int64_t next = 0;
  parse_shard_index(
      index,
      [&](std::string_view name, std::string_view shard_name) {
        const auto shard = shard_of(shard_name);
        if (!shard) return;  // an unsafe name: reported
        const auto found = tensors.find(name, next);
        if (!found) {
          faults.add(name, ": the index places it in ", shard_name,
                     shards[*shard].readable ? ", whose header lacks it" : ", which cannot be read");
          return;
        }
        next = *found + 1;
        // A name in two shards (reported) stands twice in the table, and the index means one of the two.
        bool in_shard = false;
        for (int64_t i = *found; i < tensors.size() && tensors.name(i) == name; ++i) {
          in_shard = in_shard || tensors.shard(i) == *shard;
          if (i != *found) seen[static_cast<size_t>(i)] = true;
        }
        if (seen[static_cast<size_t>(*found)]) faults.add(kIndexFileName, ": duplicate key ", name);
        seen[static_cast<size_t>(*found)] = true;
        if (!in_shard) {
          faults.add(name, ": the index places it in ", shard_name, ", the header of ",
                     shards[tensors.shard(*found)].name, " holds it");
        }
      },
      faults);
  for (int64_t i = 0; i < tensors.size(); ++i) {
    if (seen[static_cast<size_t>(i)]) continue;
    faults.add(tensors.name(i), ": in the header of ", shards[tensors.shard(i)].name, ", absent from the index");
  }
}

void Checkpoint::Impl::compare_total(const ShardIndexSummary& summary, FaultList& faults) const {
  const bool all_readable = std::ranges::all_of(shards, [](const Shard& shard) { return shard.readable; });
  if (!all_readable || !summary.total_size || *summary.total_size == total_bytes) return;
  faults.add(kIndexFileName, ": metadata.total_size is ", *summary.total_size, ", the shards hold ", total_bytes,
             " tensor bytes");
}

Status Checkpoint::Impl::load() {
  struct stat info = {};
  if (::stat(dir.c_str(), &info) != 0) return Status::not_found(cat(dir, ": no such checkpoint folder"));
  if (!S_ISDIR(info.st_mode)) return Status::invalid(cat(dir, ": expected a checkpoint folder, found a file"));
  const bool has_single = file_exists(path(kSingleFileName));
  FaultList faults;
  if (!file_exists(path(kIndexFileName))) {
    if (!has_single) {
      return Status::not_found(cat(dir, ": found neither ", kIndexFileName, " nor ", kSingleFileName));
    }
    add_shard(kSingleFileName);
    parse_headers(faults);
    find_duplicates(faults);
    return faults.to_status(dir);
  }

  auto index = MappedFile::open(path(kIndexFileName));
  if (!index.is_ok()) return index.status();
  ShardIndexSummary summary;
  collect_shards(index.value().bytes(), summary, faults);
  if (has_single && summary.readable && !shard_of(kSingleFileName)) {
    faults.add("both ", kIndexFileName, " and ", kSingleFileName,
               " are here, and the index does not name the latter: remove the one that does not belong");
  }
  parse_headers(faults);
  find_duplicates(faults);
  if (summary.readable) {
    compare_with_index(index.value().bytes(), faults);
    compare_total(summary, faults);
  }
  return faults.to_status(dir);
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Result<Checkpoint> Checkpoint::open(const std::string& model_dir, Mode mode) {
  auto impl = std::make_unique<Impl>();
  impl->dir = model_dir;
  impl->mode = mode;
  TANDEM_RETURN_IF_ERROR(impl->load());
  if (mode == Mode::kMap) impl->sort_by_address();
  return Checkpoint(std::move(impl));
}

int64_t Checkpoint::num_tensors() const { return impl_->tensors.size(); }
TensorEntry Checkpoint::tensor(int64_t i) const { return impl_->tensors.entry(i); }
std::optional<TensorEntry> Checkpoint::find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  if (!found) return std::nullopt;
  return impl_->tensors.entry(*found);
}

std::span<const std::byte> Checkpoint::data(const TensorEntry& entry) const {
  TANDEM_CHECK(impl_->mode == Mode::kMap, "a checkpoint opened for its headers has no data");
  const Shard& shard = impl_->shards[entry.shard];
  return shard.file.bytes().subspan(kSafetensorsPrefixBytes + shard.header_bytes + entry.begin, entry.num_bytes);
}

int64_t Checkpoint::num_shards() const { return static_cast<int64_t>(impl_->shards.size()); }
std::string_view Checkpoint::shard_name(uint32_t shard) const { return impl_->shards[shard].name; }
std::string Checkpoint::shard_path(uint32_t shard) const { return impl_->path(impl_->shards[shard].name); }

std::optional<Checkpoint::FilePlace> Checkpoint::place_of(const void* mapped) const {
  TANDEM_CHECK(impl_->mode == Mode::kMap, "a checkpoint opened for its headers has no data");
  const auto* address = static_cast<const std::byte*>(mapped);
  // The last shard that begins at or below the address.
  const auto above = std::upper_bound(impl_->by_address.begin(), impl_->by_address.end(), address,
                                      [this](const std::byte* at, uint32_t shard) {
                                        return std::less<>()(at, impl_->shards[shard].file.bytes().data());
                                      });
  if (above == impl_->by_address.begin()) return std::nullopt;
  const uint32_t shard = *(above - 1);
  const std::span<const std::byte> bytes = impl_->shards[shard].file.bytes();
  const auto offset = static_cast<uint64_t>(address - bytes.data());
  if (offset >= bytes.size()) return std::nullopt;
  return FilePlace{shard, offset};
}

void Checkpoint::drop_pages(std::span<const std::byte> mapped) const {
  const std::optional<FilePlace> place = place_of(mapped.data());
  if (place) impl_->shards[place->shard].file.drop_pages(place->offset, mapped.size());
}

uint64_t Checkpoint::total_bytes() const { return impl_->total_bytes; }
uint64_t Checkpoint::table_bytes() const { return impl_->tensors.used_bytes(); }
const std::string& Checkpoint::dir() const { return impl_->dir; }

}  // namespace tandem
