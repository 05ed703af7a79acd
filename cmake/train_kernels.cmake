# TANDEM_CUDA=AUTO/ON/OFF: whether the trainer's kernels (src/train/cuda/*.cu) are compiled, which needs nvcc. They are
# linked into tandem_train, as TANDEM_HAS_TRAIN_CUDA says, where LibTorch has CUDA too; beside a CPU-only LibTorch they
# are compiled and left at that. Included after tandem_train is made. nvcc is called directly: LibTorch's own CMake
# files take over the flags of the CUDA language.
set(TANDEM_CUDA AUTO CACHE STRING "Build the trainer's CUDA kernels: AUTO, ON or OFF")
set_property(CACHE TANDEM_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TANDEM_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities of the CUDA kernels, without the dot")

set(TANDEM_HAS_TRAIN_CUDA OFF)
set(TANDEM_NVCC_FOUND OFF)
if(TANDEM_CUDA)
  find_program(TANDEM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(TANDEM_NVCC)
    set(TANDEM_NVCC_FOUND ON)
  endif()
  set(torch_has_cuda OFF)
  if(TARGET c10_cuda OR TARGET torch_cuda)
    set(torch_has_cuda ON)
  endif()
  if(TANDEM_NVCC AND torch_has_cuda)
    set(TANDEM_HAS_TRAIN_CUDA ON)
  elseif(NOT TANDEM_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "TANDEM_CUDA=${TANDEM_CUDA}: needs nvcc (found: ${TANDEM_NVCC}) and a LibTorch with CUDA (found: ${torch_has_cuda})")
  endif()
endif()

if(TANDEM_NVCC_FOUND)
  set(gencode "")
  foreach(architecture IN LISTS TANDEM_CUDA_ARCHITECTURES)
    list(APPEND gencode -gencode=arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  file(GLOB kernel_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/train/cuda/*.cu)
  set(kernel_objects "")
  foreach(source IN LISTS kernel_sources)
    get_filename_component(name ${source} NAME_WE)
    set(object ${PROJECT_BINARY_DIR}/train_kernels/${name}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/train_kernels
      COMMAND ${TANDEM_NVCC} -std=c++20 -O3 -lineinfo ${gencode} -ccbin ${CMAKE_CXX_COMPILER} -Xcompiler=-fPIC
              -I${PROJECT_SOURCE_DIR}/src -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object train_kernels/${name}.o"
      VERBATIM)
    list(APPEND kernel_objects ${object})
  endforeach()
  add_custom_target(tandem_train_kernels ALL DEPENDS ${kernel_objects})
endif()

if(TANDEM_HAS_TRAIN_CUDA)
  find_package(CUDAToolkit REQUIRED)
  set_source_files_properties(${kernel_objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_sources(tandem_train PRIVATE ${kernel_objects})
  add_dependencies(tandem_train tandem_train_kernels)
  target_compile_definitions(tandem_train PUBLIC TANDEM_HAS_TRAIN_CUDA)
  target_link_libraries(tandem_train PUBLIC CUDA::cudart)
endif()
message(STATUS "Trainer's CUDA kernels: linked ${TANDEM_HAS_TRAIN_CUDA}, nvcc ${TANDEM_NVCC} (TANDEM_CUDA=${TANDEM_CUDA})")
