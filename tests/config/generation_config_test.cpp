#include "config/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(GenerationConfig, AbsentFieldsAreTheDefaults) {
  for (const char* text : {"{}", R"({"temperature":null,"top_p":null,"eos_token_id":null,"max_length":7})"}) {
    const auto config = parse_generation_config(text, "g.json");
    ASSERT_TRUE(config.is_ok()) << config.status().message();
    EXPECT_EQ(config.value().temperature, 1.0);
    EXPECT_EQ(config.value().top_p, 0.95);
    EXPECT_THAT(config.value().eos_token_ids, IsEmpty());
  }
}

TEST(GenerationConfig, StatedFieldsAreRead) {
  const auto one = parse_generation_config(R"({"temperature":0.6,"top_p":1,"eos_token_id":163586})", "g.json");
  ASSERT_TRUE(one.is_ok()) << one.status().message();
  EXPECT_EQ(one.value().temperature, 0.6);
  EXPECT_EQ(one.value().top_p, 1.0);
  EXPECT_THAT(one.value().eos_token_ids, ElementsAre(163586));
  const auto list = parse_generation_config(R"({"eos_token_id":[163586,163585,163586]})", "g.json");
  ASSERT_TRUE(list.is_ok()) << list.status().message();
  EXPECT_THAT(list.value().eos_token_ids, ElementsAre(163586, 163585));
}

TEST(GenerationConfig, EveryProblemIsReportedAtOnceByName) {
  const auto config = parse_generation_config(
      R"({"temperature":"hot","top_p":1.5,"eos_token_id":[1,-2,"x",2147483648,2.5]})", "g.json");
  ASSERT_FALSE(config.is_ok());
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(config.status().message(),
              AllOf(HasSubstr("g.json: temperature: expected a number in [0, 2], found \"hot\""),
                    HasSubstr("g.json: top_p: expected a number in [0, 1], found 1.5"), HasSubstr("found -2"),
                    HasSubstr("found \"x\""), HasSubstr("found 2147483648"), HasSubstr("found 2.5")));
}

TEST(GenerationConfig, WhatIsNoObjectIsRefused) {
  for (const char* text : {"", "[1]", "{", "3", "{\"temperature\":1e999}", "\xff\xfe"}) {
    const auto config = parse_generation_config(text, "g.json");
    ASSERT_FALSE(config.is_ok()) << text;
    EXPECT_THAT(config.status().message(), HasSubstr("g.json: expected a JSON object"));
  }
}

TEST(GenerationConfig, NestingWithoutEndIsRefusedNotFollowed) {
  const std::string deep = "{\"eos_token_id\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  EXPECT_THAT(parse_generation_config(deep, "g.json").status().message(), HasSubstr("found array"));
}

class GenerationConfigFile : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  const std::string directory_ =
      ::testing::TempDir() + "generation_config_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(GenerationConfigFile, NoFileIsTheDefaults) {
  const auto config = load_generation_config(directory_);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  EXPECT_EQ(config.value().top_p, 0.95);
}

TEST_F(GenerationConfigFile, AFileIsRead) {
  std::ofstream(directory_ + "/generation_config.json") << R"({"top_p":0.5})";
  const auto config = load_generation_config(directory_);
  ASSERT_TRUE(config.is_ok()) << config.status().message();
  EXPECT_EQ(config.value().top_p, 0.5);
}

TEST_F(GenerationConfigFile, ADirectoryInItsPlaceIsAnError) {
  std::filesystem::create_directories(directory_ + "/generation_config.json");
  const auto config = load_generation_config(directory_);
  ASSERT_FALSE(config.is_ok());
  EXPECT_THAT(config.status().message(), AllOf(HasSubstr(directory_), HasSubstr("not a regular file")));
}

TEST(GenerationConfig, ReadsTheOtherFilters) {
  const auto parsed = parse_generation_config(
      R"({"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1, "do_sample": false, "temperature": 0.7})", "g.json");
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().message();
  EXPECT_EQ(parsed.value().top_k, 40);
  EXPECT_EQ(parsed.value().min_p, 0.05);
  EXPECT_EQ(parsed.value().repetition_penalty, 1.1);
  EXPECT_EQ(parsed.value().temperature, 0.0);  // do_sample false is greedy
  const auto refused = parse_generation_config(R"({"top_k": 1.5, "repetition_penalty": 0, "do_sample": 1})", "g.json");
  ASSERT_FALSE(refused.is_ok());
  for (const char* field : {"top_k", "repetition_penalty", "do_sample"}) {
    EXPECT_NE(refused.status().message().find(field), std::string::npos) << refused.status().message();
  }
}

}  // namespace
}  // namespace tandem
