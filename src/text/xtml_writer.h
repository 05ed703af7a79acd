// text/xtml_writer.h: tags, texts and images of the K3 format as segments. Part of xtml_renderer.h; not for others.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/segment.h"

namespace tandem {

class XtmlWriter {
 public:
  using Attribute = std::pair<std::string_view, std::string_view>;

  // `image_prompts` (may be null) outlives the writer.
  explicit XtmlWriter(const std::vector<std::string>* image_prompts) : image_prompts_(image_prompts) {}

  void open(std::string_view name, std::initializer_list<Attribute> attributes = {});
  // open(message, role, name) for a non-empty name, else open(message, role).
  void open_message(Role role, std::string_view name);
  void close(std::string_view name);
  void close_message();
  void text(std::string_view text);  // nothing for an empty text
  Status content(const std::vector<ContentPart>& parts);
  // A whole system message of a fixed kind.
  void system_note(std::string_view type, std::string_view body);

  Status check_images_used() const;
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  void control(std::string_view text) { segments_.push_back({std::string(text), true}); }
  Status next_image_prompt();
  Status image(const ContentPart& part);
  Status text_with_placeholders(std::string_view text);

  std::vector<Segment> segments_;
  const std::vector<std::string>* image_prompts_;
  size_t num_images_used_ = 0;
};

}  // namespace tandem
