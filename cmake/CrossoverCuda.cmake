# Finds the CUDA and NCCL headers and nvcc: CROSSOVER_CUDA_ROOT, else what scripts/bootstrap chose (build/cuda.root),
# else an installed toolkit. Only headers and the compiler are used: nothing in this project links libcuda, libcudart
# or libnccl of the machine it is built on.
#   crossover_cuda_headers  INTERFACE target: cuda.h, cuda_runtime_api.h, nccl.h
#   CROSSOVER_NVCC          path of nvcc
set(CROSSOVER_CUDA_ROOT "" CACHE PATH "CUDA toolkit to take the headers and nvcc from")
set(_chosen "")
if(EXISTS ${PROJECT_SOURCE_DIR}/build/cuda.root)
    file(STRINGS ${PROJECT_SOURCE_DIR}/build/cuda.root _chosen LIMIT_COUNT 1)
endif()

# The caches would otherwise keep an earlier choice.
if(NOT "${CROSSOVER_CUDA_ROOT}|${_chosen}" STREQUAL "${CROSSOVER_CUDA_SEARCHED}")
    unset(CROSSOVER_CUDA_INCLUDE CACHE)
    unset(CROSSOVER_NCCL_INCLUDE CACHE)
    unset(CROSSOVER_NVCC CACHE)
    set(CROSSOVER_CUDA_SEARCHED "${CROSSOVER_CUDA_ROOT}|${_chosen}" CACHE INTERNAL "")
endif()

# First the folders named, in order, alone; only then the system's own.
set(_hints ${CROSSOVER_CUDA_ROOT} ${_chosen} $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)
set(_nccl_hints ${_hints} ${PROJECT_SOURCE_DIR}/build/cuda)
find_path(CROSSOVER_CUDA_INCLUDE cuda_runtime_api.h PATHS ${_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(CROSSOVER_CUDA_INCLUDE cuda_runtime_api.h)
find_path(CROSSOVER_NCCL_INCLUDE nccl.h PATHS ${_nccl_hints} PATH_SUFFIXES include NO_DEFAULT_PATH)
find_path(CROSSOVER_NCCL_INCLUDE nccl.h)
find_program(CROSSOVER_NVCC nvcc PATHS ${_hints} PATH_SUFFIXES bin NO_DEFAULT_PATH)
find_program(CROSSOVER_NVCC nvcc)
if(NOT CROSSOVER_CUDA_INCLUDE OR NOT CROSSOVER_NCCL_INCLUDE)
    message(FATAL_ERROR "CUDA or NCCL headers not found; run scripts/bootstrap or set CROSSOVER_CUDA_ROOT")
endif()

file(STRINGS ${CROSSOVER_CUDA_INCLUDE}/cuda_runtime_api.h _version REGEX "^#define CUDART_VERSION +[0-9]+")
string(REGEX REPLACE "[^0-9]" "" _version "${_version}")
if(NOT _version OR _version LESS 13000)
    message(FATAL_ERROR "the CUDA headers in ${CROSSOVER_CUDA_INCLUDE} are version ${_version}; 13000 or newer is "
                        "needed: run scripts/bootstrap or set CROSSOVER_CUDA_ROOT")
endif()

add_library(crossover_cuda_headers INTERFACE)
target_include_directories(crossover_cuda_headers SYSTEM INTERFACE
    ${CROSSOVER_CUDA_INCLUDE} ${CROSSOVER_NCCL_INCLUDE})
message(STATUS "CUDA headers: ${CROSSOVER_CUDA_INCLUDE}; NCCL headers: ${CROSSOVER_NCCL_INCLUDE}; nvcc: ${CROSSOVER_NVCC}")
