# TANDEM_GPU_BUILD: tandem-train with pretrain, sft and export, for a machine with a GPU, g++, CMake and PyTorch:
#   cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTANDEM_GPU_BUILD=ON
#     -DCMAKE_PREFIX_PATH="$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')"
# LibTorch, nlohmann-json and CLI11 are all it needs; the last two can be used by their headers alone and are found as
# CMake packages or by a header (-DCMAKE_INCLUDE_PATH=<folder>). Of a folder that needs more in whole, the files that
# training uses are listed here.
include(${CMAKE_CURRENT_LIST_DIR}/layers.cmake)
set(TANDEM_TRAIN ON CACHE STRING "" FORCE)
include(${CMAKE_CURRENT_LIST_DIR}/libtorch.cmake)

# tandem_header_library(package target header): the target of the package, or one for the folder of the header.
function(tandem_header_library package target header)
  find_package(${package} QUIET)
  if(TARGET ${target})
    return()
  endif()
  find_path(${package}_HEADERS ${header} REQUIRED)
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} INTERFACE ${${package}_HEADERS})
endfunction()
tandem_header_library(nlohmann_json nlohmann_json::nlohmann_json nlohmann/json.hpp)
tandem_header_library(CLI11 CLI11::CLI11 CLI/CLI.hpp)

set(TANDEM_GPU_FILES_weights
  atomic_file init_values mapped_file output_folder random_values safetensors_writer shard_plan tensor_names
  tensor_table)
set(TANDEM_GPU_FILES_corpus
  index_permutation packed_sequences token_shard token_shard_writer training_order)
# What reads a released checkpoint needs simdjson; several ranks need Gloo's headers.
set(TANDEM_GPU_WITHOUT_train train_model_load widen_tensor gloo_group)

foreach(folder base config tensor weights corpus train)
  if(TANDEM_GPU_FILES_${folder})
    list(TRANSFORM TANDEM_GPU_FILES_${folder} PREPEND ${PROJECT_SOURCE_DIR}/src/${folder}/ OUTPUT_VARIABLE sources)
    list(TRANSFORM sources APPEND .cpp)
  else()
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cpp)
  endif()
  foreach(name IN LISTS TANDEM_GPU_WITHOUT_${folder})
    list(FILTER sources EXCLUDE REGEX "/${name}\\.cpp$")
  endforeach()
  add_library(tandem_${folder} STATIC ${sources})
  target_include_directories(tandem_${folder} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  foreach(dep IN LISTS TANDEM_DEPS_${folder})
    if(TARGET tandem_${dep})
      target_link_libraries(tandem_${folder} PUBLIC tandem_${dep})
    endif()
  endforeach()
  target_link_libraries(tandem_${folder} PUBLIC tandem_options nlohmann_json::nlohmann_json)
endforeach()
target_link_libraries(tandem_train PUBLIC ${TORCH_LIBRARIES})
target_compile_definitions(tandem_train PRIVATE TANDEM_GPU_BUILD)
# g++ 13 takes the std::vector<bool> inside torch::autograd::Function for an overrun.
target_compile_options(tandem_train PRIVATE -Wno-array-bounds -Wno-stringop-overflow)
include(${CMAKE_CURRENT_LIST_DIR}/train_kernels.cmake)

add_subdirectory(apps/cli)
add_subdirectory(apps/tandem-train)
