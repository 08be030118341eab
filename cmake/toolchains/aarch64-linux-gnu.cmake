# Compiles for aarch64 with Debian's g++-aarch64-linux-gnu. CMAKE_FIND_ROOT_PATH must have the arm64 packages of
# Debian, unpacked, and LibTorch_ROOT LibTorch for aarch64. With qemu-user-static, tests run, too.
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

# qemu 7.2 shows programs this machine's /proc/cpuinfo, and LibTorch crashes if that is not of an aarch64. So this folder,
# where qemu searches each file first, describes a Neoverse N1.
find_program(TESSERA_QEMU qemu-aarch64-static)
if(TESSERA_QEMU)
  set(emulated "${CMAKE_BINARY_DIR}/emulated")
  set(cpuinfo "")
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  foreach(core RANGE 1 ${cores})
    math(EXPR core "${core} - 1")
    string(APPEND cpuinfo "processor : ${core}\nCPU implementer : 0x41\nCPU part : 0xd0c\n\n")
  endforeach()
  file(CONFIGURE OUTPUT "${emulated}/proc/cpuinfo" CONTENT "${cpuinfo}")
  file(CONFIGURE OUTPUT "${emulated}/sys/devices/system/cpu/cpu0/regs/identification/midr_el1" CONTENT 0x413fd0c1\n)
  file(CREATE_LINK /usr/aarch64-linux-gnu/lib "${emulated}/lib" SYMBOLIC)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${TESSERA_QEMU};-L;${emulated}")
endif()
