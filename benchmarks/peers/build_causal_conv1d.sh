#!/bin/sh
# Builds and installs the Dao-AILab package causal-conv1d from a source folder, for sm_90 only.
#
#     benchmarks/peers/build_causal_conv1d.sh SOURCE [PYTHON]
#
# SOURCE is a checkout of the package; nothing is fetched. PYTHON (default: python3) is the interpreter that has torch,
# setuptools, packaging and ninja, and into which the package goes. CUDA's nvcc must be there: under CUDA_HOME, or on PATH.
#
# The package's own build compiles for every architecture that its authors serve, which takes several times as long. A
# stand-in for nvcc drops the others from its command line, whichever version of the package asks for them.
set -eu

die() { echo "build_causal_conv1d: $*" >&2; exit 2; }

[ $# -ge 1 ] || die "usage: $0 SOURCE [PYTHON]"
source=$(cd "$1" && pwd) || die "no folder $1"
python=${2:-python3}
[ -f "$source/setup.py" ] && [ -d "$source/csrc" ] || die "$source is not a checkout of causal-conv1d"
if [ -n "${CUDA_HOME:-}" ]; then
    nvcc=$CUDA_HOME/bin/nvcc
else
    nvcc=$(command -v nvcc) || die "nvcc is not on PATH; set CUDA_HOME"
fi
[ -x "$nvcc" ] || die "no nvcc at $nvcc"
"$python" -c 'import ninja, packaging, setuptools, torch' ||
    die "$python needs torch, setuptools, packaging and ninja"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/nvcc" <<'STAND_IN'
#!/bin/sh
# Passes everything on but the code for other architectures than sm_90.
set -eu
count=$#
while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    count=$((count - 1))
    case $argument in
    -gencode)
        value=$1
        shift
        count=$((count - 1))
        case $value in *sm_90) set -- "$@" "$argument" "$value" ;; esac
        ;;
    -gencode=* | --generate-code=*)
        case $argument in *sm_90) set -- "$@" "$argument" ;; esac
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "$REAL_NVCC" "$@"
STAND_IN
chmod +x "$work/nvcc"

# The build writes into the folder it runs in.
cp -R "$source" "$work/source"
cd "$work/source"
REAL_NVCC=$nvcc PYTORCH_NVCC=$work/nvcc TORCH_CUDA_ARCH_LIST=9.0 MAX_JOBS=${MAX_JOBS:-$(nproc)} \
    CAUSAL_CONV1D_FORCE_BUILD=TRUE \
    "$python" -m pip install --no-index --no-deps --no-build-isolation --quiet .
cd /
"$python" -c 'import causal_conv1d; print("causal_conv1d", causal_conv1d.__version__, "for sm_90")'
