// stream/trunk_stream.h: the trunk read from disk layer by layer, for a budget that does not hold it.
//
//   Two buffers of the largest layer: while one is computed, the next is read into the other, and the first layer of
//   the next step follows the head of this one. The views of the model's weights are pointed into the buffers; routers
//   stay where they are mapped, because the look ahead needs the next layer's, and so does the embedding, of which a
//   step reads rows. A read that fails, and a layer whose bytes differ from those of its first read, are refused by
//   name. Threading: engine thread only. Checkpoint and weights outlive the stream, which gives the views back at its
//   end.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "model/layer_source.h"
#include "stream/direct_reader.h"
#include "stream/read_layout.h"
#include "stream/slot_memory.h"
#include "weights/model_weights.h"

namespace tandem {

class TrunkStream final : public LayerSource {
 public:
  struct Sizes {
    uint64_t streamed_bytes = 0;  // of all layers and the head: read in every step
    uint64_t buffer_bytes = 0;    // of one of the two
  };
  static Result<Sizes> sizes(const Checkpoint& checkpoint, ModelWeights& weights);
  static Result<std::unique_ptr<TrunkStream>> create(const Checkpoint& checkpoint, ModelWeights& weights,
                                                     const DirectReaderOptions& options);
  ~TrunkStream() override;

  Status enter(int64_t layer) override;

  const DirectReader& reader() const { return *reader_; }

 private:
  struct Section {  // a layer, or the head
    std::vector<WeightView*> views;
    std::vector<WeightView> mapped;
    ReadLayout layout;
    uint64_t hash = 0;  // 0: not read yet
  };
  struct Buffer {
    std::optional<size_t> section;  // that is in it, or being read into it
    size_t reads_left = 0;
    bool ready = false;  // read, settled, checked, and the views point into it
    bool lost = false;   // a read of it was never answered
    Status status;
  };

  TrunkStream(const Checkpoint& checkpoint, std::vector<Section> sections, SlotMemory memory,
              std::unique_ptr<DirectReader> reader);
  static Result<std::vector<Section>> sections_of(const Checkpoint& checkpoint, ModelWeights& weights);
  void start(size_t buffer, size_t section);
  Status finish(size_t buffer);
  Status drain(size_t buffer);
  void give_back_views(size_t buffer);
  void handle_completions();
  std::string name_of(size_t section) const;

  const Checkpoint& checkpoint_;
  std::vector<Section> sections_;
  SlotMemory memory_;
  std::array<Buffer, 2> buffers_;
  std::vector<ReadCompletion> done_;      // scratch
  std::unique_ptr<DirectReader> reader_;  // its destructor waits for reads into memory_, so it goes first
};

}  // namespace tandem
