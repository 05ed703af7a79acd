// text/xtml_renderer.h: the chat format of Kimi K3 (XTML), as exact segments (segment.h).
//
//   open tag   <|open|> name ( key="value")* <|sep|>       close tag  <|close|> name <|sep|>
//   message    open(message, role=…) body close(message) <|end_of_msg|>
//   assistant  [think] response [tools]       think when thinking is on, also when empty; response always
//   prompt     tools · thinking effort · conversation · tool choice · response format · generation prompt
//   No white space and no BOS is added between elements; content is neither escaped nor trimmed.
//   Source: the conversations rendered by the release's encoding_k3.py (tests/data/fixtures/chat). Stateless: any
//   thread.
#pragma once

#include <vector>

#include "base/result.h"
#include "text/chat_message.h"
#include "text/segment.h"

namespace tandem {

// kInvalidArgument: arguments that parse to something else than an object, a tool result without a name, an image
// prompt too many or too few. kUnsupported: an image whose size is not known.
Result<std::vector<Segment>> render_xtml(const ChatRequest& request);

}  // namespace tandem
