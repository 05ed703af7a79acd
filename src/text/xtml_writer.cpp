#include "text/xtml_writer.h"

#include "base/cat.h"

namespace tandem {
namespace {

constexpr std::string_view kImagePlaceholder = "<|kimi_image_placeholder|>";

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

void XtmlWriter::text(std::string_view text) {
  if (!text.empty()) segments_.push_back({std::string(text), false});
}

void XtmlWriter::open(std::string_view name, std::initializer_list<Attribute> attributes) {
  control("<|open|>");
  text(name);
  for (const auto& [key, value] : attributes) {
    text(cat(" ", key));
    text("=\"");
    text(escape_attribute(value));
    text("\"");
  }
  control("<|sep|>");
}

void XtmlWriter::open_message(Role role, std::string_view name) {
  if (name.empty()) {
    open("message", {{"role", role_name(role)}});
  } else {
    open("message", {{"role", role_name(role)}, {"name", name}});
  }
}

void XtmlWriter::close(std::string_view name) {
  control("<|close|>");
  text(name);
  control("<|sep|>");
}

void XtmlWriter::close_message() {
  close("message");
  control("<|end_of_msg|>");
}

void XtmlWriter::system_note(std::string_view type, std::string_view body) {
  open("message", {{"role", "system"}, {"type", type}});
  text(body);
  close_message();
}

Status XtmlWriter::next_image_prompt() {
  if (num_images_used_ >= image_prompts_->size()) {
    return Status::invalid(cat("image_prompts: expected one for every image of the conversation, found ",
                               image_prompts_->size(), " and more images"));
  }
  control((*image_prompts_)[num_images_used_++]);
  return Status::ok();
}

Status XtmlWriter::image(const ContentPart& part) {
  if (image_prompts_ != nullptr) return next_image_prompt();
  if (part.width <= 0 || part.height <= 0) {
    return Status::unsupported(
        "messages: expected text only, found an image part: no image of this request was decoded");
  }
  control(cat("<|media_begin|>image ", part.width, "x", part.height, "<|media_content|><|media_pad|><|media_end|>"));
  return Status::ok();
}

Status XtmlWriter::text_with_placeholders(std::string_view rest) {
  for (size_t at; (at = rest.find(kImagePlaceholder)) != std::string_view::npos;) {
    text(rest.substr(0, at));
    TANDEM_RETURN_IF_ERROR(next_image_prompt());
    rest.remove_prefix(at + kImagePlaceholder.size());
  }
  text(rest);
  return Status::ok();
}

Status XtmlWriter::content(const std::vector<ContentPart>& parts) {
  for (const ContentPart& part : parts) {
    if (part.kind == ContentPart::Kind::kImage) {
      TANDEM_RETURN_IF_ERROR(image(part));
    } else if (image_prompts_ != nullptr) {
      TANDEM_RETURN_IF_ERROR(text_with_placeholders(part.text));
    } else {
      text(part.text);
    }
  }
  return Status::ok();
}

Status XtmlWriter::check_images_used() const {
  if (image_prompts_ == nullptr || num_images_used_ == image_prompts_->size()) return Status::ok();
  return Status::invalid(cat("image_prompts: expected one for every image of the conversation, found ",
                             image_prompts_->size(), " for ", num_images_used_, " images"));
}

}  // namespace tandem
