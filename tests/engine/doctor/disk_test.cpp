// The disk probe and what it knows of file systems; field report 67: a number that is the page cache's must not pass.
// Nothing here asserts on a speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "engine/doctor/disk_checks.h"
#include "engine/doctor/file_system_info.h"
#include "support/golden.h"
#include "support/temp_folder.h"

namespace tandem {
namespace {

using test::TempFolder;
using testing::HasSubstr;

constexpr std::string_view kMounts =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n"
    "30 27 259:2 / /mnt/big\\040drive rw shared:1 master:2 - xfs /dev/nvme0n1p2 rw\n"
    "31 27 0:50 / /net rw - nfs4 server:/export rw\n";

TEST(FileSystemInfoTest, MountsByDeviceNumber) {
  const auto root = find_mount(kMounts, 254, 0);
  ASSERT_TRUE(root.has_value());
  EXPECT_EQ(root->type, "ext4");
  EXPECT_EQ(root->source, "/dev/vda");
  const auto drive = find_mount(kMounts, 259, 2);
  ASSERT_TRUE(drive.has_value());
  EXPECT_EQ(drive->point, "/mnt/big drive");
  EXPECT_EQ(drive->type, "xfs") << "behind optional fields";
  FileSystemInfo net;
  net.mount = *find_mount(kMounts, 0, 50);
  EXPECT_TRUE(net.is_network());
  EXPECT_FALSE(find_mount(kMounts, 8, 1).has_value());
  EXPECT_FALSE(find_mount("27 1 254:0 / /\n- \n\n", 254, 0).has_value());
}

TEST(FileSystemInfoTest, DrivesAndPartitions) {
  const TempFolder sys;
  sys.write("devices/nvme/pci/current_link_speed", "16.0 GT/s PCIe\n");
  sys.write("devices/nvme/pci/current_link_width", "4\n");
  sys.write("devices/nvme/nvme0n1/queue/rotational", "0\n");
  sys.write("devices/nvme/nvme0n1/nvme0n1p2/partition", "2\n");
  sys.write("devices/nvme/ctl/model", "x\n");
  sys.write("devices/sda/queue/rotational", "1\n");
  sys.write("dev/block/.keep", "");
  const auto link = [&](const char* target, const char* name) {
    std::filesystem::create_directory_symlink(sys.path(target), sys.path(name));
  };
  link("devices/nvme/pci", "devices/nvme/ctl/device");
  link("devices/nvme/ctl", "devices/nvme/nvme0n1/device");
  link("devices/nvme/nvme0n1", "dev/block/259:0");
  link("devices/nvme/nvme0n1/nvme0n1p2", "dev/block/259:2");
  link("devices/sda", "dev/block/8:0");
  for (const unsigned minor : {0u, 2u}) {
    const Drive nvme = describe_drive(sys.path(), 259, minor);
    EXPECT_EQ(nvme.rotational, false) << minor;
    ASSERT_TRUE(nvme.link_gb_s.has_value()) << minor;
    EXPECT_NEAR(*nvme.link_gb_s, 7.88, 0.01) << "PCIe 4.0, 4 lanes";
  }
  EXPECT_EQ(describe_drive(sys.path(), 8, 0).rotational, true);
  EXPECT_FALSE(describe_drive(sys.path(), 8, 0).link_gb_s.has_value());
  EXPECT_FALSE(describe_drive(sys.path(), 7, 7).rotational.has_value());
}

TEST(FileSystemInfoTest, AFileOfThisMachine) {
  const TempFolder dir;
  const auto info = describe_file_system(dir.write("file", "x"));
  ASSERT_TRUE(info.is_ok()) << info.status().message();
  EXPECT_GT(info.value().total_bytes, 0u);
  EXPECT_FALSE(describe_file_system(dir.path("none")).is_ok());
  const std::string sparse = dir.write("sparse", "");
  std::filesystem::resize_file(sparse, 1 << 24);
  EXPECT_LT(stored_share(sparse).value(), 0.1);
}

TEST(DiskProbeTest, RatesAgreeWithinTheNoiseInBothDirections) {
  EXPECT_TRUE(rates_agree(3.0, 3.3, 0.15));
  EXPECT_TRUE(rates_agree(3.3, 3.0, 0.15));
  EXPECT_FALSE(rates_agree(3.9, 44.0, 0.5));  // the field report's numbers
  EXPECT_FALSE(rates_agree(44.0, 3.9, 0.5));
  EXPECT_FALSE(rates_agree(0.0, 0.0, 0.5));
}

// Blocks are read, whole passes of them, past the page cache or with the fallback named; the numbers of a pass belong
// to the bytes it read.
TEST(DiskProbeTest, ReadsEveryKindOfPass) {
  const TempFolder dir;
  auto file = ProbeFile::create(dir.path(), 8'000'000);
  ASSERT_TRUE(file.is_ok()) << file.status().message();
  EXPECT_EQ(std::filesystem::file_size(file.value().path()), 8'000'000u);
  DiskProbeOptions options;
  options.block_bytes = 60'000;
  options.queue_depths = {1, 4};
  const std::vector<std::string> paths = {file.value().path()};
  std::vector<std::string> told;
  const auto probe = probe_disk(paths, options, [&](const std::string& doing) { told.push_back(doing); });
  ASSERT_TRUE(probe.is_ok()) << probe.status().message();
  EXPECT_EQ(probe.value().block_bytes, 61'440u) << "whole pages";
  ASSERT_EQ(probe.value().passes.size(), 3u);
  EXPECT_EQ(told.size(), 6u);
  for (const DiskPass& pass : probe.value().passes) {
    EXPECT_EQ(pass.bytes % 61'440, 0u);
    EXPECT_GE(pass.bytes, 16 * 61'440u);
    EXPECT_GT(pass.gb_s, 0);
    EXPECT_GT(pass.repeat_gb_s, 0);
    EXPECT_GE(pass.noise, 0.15);
  }
  EXPECT_FALSE(probe.value().passes[0].random);
  EXPECT_TRUE(probe.value().passes[2].random);
  EXPECT_EQ(probe.value().passes[2].queue_depth, 4u);
  const bool bypasses =
      probe.value().method.find("O_DIRECT, ") == std::string::npos && probe.value().method.ends_with("O_DIRECT");
  EXPECT_TRUE(bypasses || probe.value().method.find("posix_fadvise") != std::string::npos) << probe.value().method;
}

TEST(DiskProbeTest, AnImpossibleRateIsNotTrusted) {
  const TempFolder dir;
  auto file = ProbeFile::create(dir.path(), 8'000'000);
  ASSERT_TRUE(file.is_ok());
  DiskProbeOptions options;
  options.block_bytes = 65'536;
  options.queue_depths = {2};
  options.link_gb_s = 1e-9;
  const std::vector<std::string> paths = {file.value().path()};
  const auto probe = probe_disk(paths, options, [](const std::string&) {});
  ASSERT_TRUE(probe.is_ok());
  EXPECT_FALSE(probe.value().trusted);
  EXPECT_THAT(probe.value().distrust, HasSubstr("link carries"));
}

TEST(DiskProbeTest, FilesThatAreTooSmallOrAbsent) {
  const TempFolder dir;
  const std::vector<std::string> paths = {dir.write("small", std::string(100'000, 'x'))};
  const auto probe = probe_disk(paths, {}, [](const std::string&) {});
  ASSERT_TRUE(probe.is_ok());
  EXPECT_TRUE(probe.value().passes.empty());
  const std::vector<std::string> none = {dir.path("none")};
  EXPECT_EQ(probe_disk(none, {}, [](const std::string&) {}).status().code(), StatusCode::kNotFound);
  DiskProbeOptions wrong;
  wrong.queue_depths = {};
  EXPECT_EQ(probe_disk(paths, wrong, [](const std::string&) {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(DiskChecksTest, SparseFilesAreNotMeasured) {
  const TempFolder dir;
  const std::string sparse = dir.write("sparse", "");
  std::filesystem::resize_file(sparse, 1 << 26);
  std::vector<DoctorCheck> checks;
  EXPECT_EQ(
      check_disks(
          {sparse}, {}, [&](DoctorCheck check) { checks.push_back(std::move(check)); }, [](const std::string&) {}),
      0.0);
  ASSERT_EQ(checks.size(), 2u);
  EXPECT_EQ(checks[0].name, "file_system");
  EXPECT_EQ(checks[1].verdict, Verdict::kSkipped);
}

TEST(DiskChecksTest, TheProbesFileIsRemovedAndItsBlocksAreAnExpert) {
  const TempFolder dir;
  std::string path;
  {
    auto file = ProbeFile::create(dir.path(), 1'000'000);
    ASSERT_TRUE(file.is_ok());
    path = file.value().path();
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(ProbeFile::create(dir.path(), uint64_t{1} << 60).status().code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(ProbeFile::create(dir.path("none"), 1).is_ok());
  const auto k3 = load_model_config_file(test::data_path("../../configs/k3.json"));
  ASSERT_TRUE(k3.is_ok());
  EXPECT_NEAR(static_cast<double>(probe_block_bytes(k3.value())), 17.547e6, 1e3);  // systems.md §8.2
  EXPECT_EQ(probe_block_bytes(std::nullopt), uint64_t{1} << 20);
}

}  // namespace
}  // namespace tandem
