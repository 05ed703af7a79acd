#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace tandem {
namespace {

Result<std::unique_ptr<int>> make_owned(bool good) {
  if (!good) return Status::not_found("file: expected it, found nothing");
  return std::make_unique<int>(5);
}

Result<std::string> describe(bool good) {
  TANDEM_RETURN_IF_ERROR(good ? Status::ok() : Status::io("disk: refused"));
  return std::string("done");
}

TEST(Status, DefaultIsOkAndCarriesNoMessage) {
  EXPECT_TRUE(Status().is_ok());
  EXPECT_TRUE(Status::ok().is_ok());
  EXPECT_EQ(Status::ok().message(), "");
}

TEST(Status, EachMakerSetsItsCode) {
  const std::pair<Status, StatusCode> cases[] = {
      {Status::invalid("m"), StatusCode::kInvalidArgument},
      {Status::not_found("m"), StatusCode::kNotFound},
      {Status::unsupported("m"), StatusCode::kUnsupported},
      {Status::io("m"), StatusCode::kIo},
      {Status::exhausted("m"), StatusCode::kResourceExhausted},
      {Status::failed_precondition("m"), StatusCode::kFailedPrecondition},
      {Status::non_finite("m"), StatusCode::kNonFinite},
  };
  for (const auto& [status, code] : cases) {
    EXPECT_FALSE(status.is_ok());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), "m");
  }
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kCancelled); ++code) {
    const std::string_view name = status_code_name(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Result, HoldsAMoveOnlyValueOrTheError) {
  auto good = make_owned(true);
  ASSERT_TRUE(good.is_ok());
  EXPECT_TRUE(good.status().is_ok());
  const std::unique_ptr<int> owned = std::move(good).value();
  EXPECT_EQ(*owned, 5);
  const auto bad = make_owned(false);
  EXPECT_FALSE(bad.is_ok());
  EXPECT_EQ(bad.status().code(), StatusCode::kNotFound);
}

TEST(Result, ValueIsReachedInPlace) {
  Result<std::vector<int>> result(std::vector<int>{1, 2});
  result.value().push_back(3);
  const auto& constant = result;
  EXPECT_EQ(constant.value().size(), 3u);
}

TEST(Result, ReturnIfErrorPassesTheErrorThrough) {
  EXPECT_EQ(describe(true).value(), "done");
  EXPECT_EQ(describe(false).status().code(), StatusCode::kIo);
  EXPECT_EQ(describe(false).status().message(), "disk: refused");
}

TEST(ResultDeathTest, MisuseIsABugAndAborts) {
  EXPECT_DEATH((void)make_owned(false).value(), "file: expected it, found nothing");
  EXPECT_DEATH(Result<int>(Status::ok()).is_ok(), "needs an error");
}

TEST(CheckDeathTest, NamesThePlaceTheConditionAndTheReason) {
  const int two = 2;
  EXPECT_DEATH(TANDEM_CHECK(two == 3, "arithmetic holds"), "result_test.cpp:[0-9]+: two == 3: arithmetic holds");
}

}  // namespace
}  // namespace tandem
