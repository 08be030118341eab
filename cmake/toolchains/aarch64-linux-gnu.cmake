# Compiles for aarch64 with Debian's g++-aarch64-linux-gnu. CMAKE_FIND_ROOT_PATH must have the arm64 packages of
# Debian, unpacked, and CMAKE_PREFIX_PATH the torch wheel for aarch64. With qemu-user-static, tests run, too.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# Programs run here, and libraries and headers must not be those of this machine.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

find_program(TESSERA_QEMU qemu-aarch64-static)
if(TESSERA_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${TESSERA_QEMU};-L;/usr/aarch64-linux-gnu")
endif()
