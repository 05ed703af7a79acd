#include "server/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "base/cat.h"
#include "base/sha256.h"

namespace tandem {
namespace {

HttpRequest with_header(std::string name, std::string value) {
  HttpRequest request;
  request.headers = {{std::move(name), std::move(value)}};
  return request;
}

TEST(ApiKeys, WithoutKeysEverybodyMayAsk) {
  const ApiKeys keys;
  EXPECT_TRUE(keys.is_open());
  EXPECT_EQ(keys.owner_of({}), "");
  EXPECT_EQ(keys.owner_of(with_header("authorization", "Bearer anything")), "");
}

TEST(ApiKeys, EachKeyHasItsOwner) {
  const auto keys = ApiKeys::create({"sk-one", "sk-two"});
  ASSERT_TRUE(keys.is_ok());
  const auto one = keys.value().owner_of(with_header("authorization", "Bearer sk-one"));
  const auto two = keys.value().owner_of(with_header("x-api-key", "sk-two"));
  ASSERT_TRUE(one && two);
  EXPECT_NE(*one, *two);
  EXPECT_EQ(keys.value().owner_of(with_header("x-api-key", " sk-one ")), one);
  EXPECT_EQ(keys.value().owner_of(with_header("authorization", "bearer  sk-one")), one) << "the scheme has no case";
  EXPECT_EQ(*one, cat("key-", sha256_hex(sha256("sk-one")).substr(0, 32)));
  EXPECT_THAT(*one, testing::Not(testing::HasSubstr("sk-")));
}

TEST(ApiKeys, WrongKeysAreRefused) {
  const auto keys = ApiKeys::create({"abcabc"});
  ASSERT_TRUE(keys.is_ok());
  for (const char* wrong : {"", "a", "abc", "abcabd", "xbcabc", "abcabcabc", "ABCABC"}) {
    EXPECT_EQ(keys.value().owner_of(with_header("x-api-key", wrong)), std::nullopt) << wrong;
    EXPECT_EQ(keys.value().owner_of(with_header("authorization", cat("Bearer ", wrong))), std::nullopt) << wrong;
  }
  EXPECT_EQ(keys.value().owner_of({}), std::nullopt);
  EXPECT_EQ(keys.value().owner_of(with_header("authorization", "Basic abcabc")), std::nullopt);
  const HttpResponse refused = ApiKeys::unauthorized();
  EXPECT_EQ(refused.status, 401);
  EXPECT_THAT(refused.body,
              testing::HasSubstr("\"type\":\"authentication_error\",\"param\":null,\"code\":\"invalid_api_key\""));
  EXPECT_FALSE(ApiKeys::needs_key("/health"));
  EXPECT_FALSE(ApiKeys::needs_key("/ping"));
  EXPECT_TRUE(ApiKeys::needs_key("/metrics"));
}

TEST(ApiKeys, SourcesAddUp) {
  const std::string path = cat(testing::TempDir(), "/api_keys_test_", ::getpid());
  std::ofstream(path) << "# the team's keys\n\n  file-one \r\nfile-two\n";
  const auto keys = ApiKeys::load({"flag"}, "env-one, env-two\n", path);
  ASSERT_TRUE(keys.is_ok()) << keys.status().message();
  for (const char* key : {"flag", "env-one", "env-two", "file-one", "file-two"}) {
    EXPECT_TRUE(keys.value().owner_of(with_header("x-api-key", key))) << key;
  }
  EXPECT_FALSE(keys.value().owner_of(with_header("x-api-key", "# the team's keys")));
  std::ofstream(path) << "# none\n";
  const auto none = ApiKeys::load({}, std::nullopt, path);
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(none.status().message(), testing::HasSubstr(path));
  std::remove(path.c_str());
  EXPECT_EQ(ApiKeys::load({}, std::nullopt, path).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ApiKeys::load({}, " , ", "").status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(ApiKeys::load({}, std::nullopt, "").value().is_open());
  const auto spaced = ApiKeys::create({"fine", "not fine"});
  EXPECT_EQ(spaced.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(spaced.status().message(), testing::StartsWith("API key 2 of 2:"));
  EXPECT_THAT(spaced.status().message(), testing::Not(testing::HasSubstr("not fine")));
  EXPECT_EQ(ApiKeys::create({""}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
