"""Operations on tensors that compiled code does on a CPU, and Triton's kernels on a GPU, with the same results in plain
torch beside them: the largest magnitudes, adding what was sent, norms and sums weighted by them, parts of matrices.

Which compiled code takes a tensor is decided here too: C, compiled when it is first needed, or Triton; or neither.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
import warnings
from cmath import isfinite
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from struct import Struct

import torch
from torch import Tensor
from torch.nn.functional import pad

from resireduce.core.messages import Payload
from resireduce.pieces import coprime_step, slices

# --- C on a CPU ---


SWITCH = "RESIREDUCE_NATIVE"
"""Environment variable: with 0 nothing is compiled."""
FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-shared", "-fPIC")
"""Sums keep the order and precision in which they are written, so that results are those of the plain form."""
CLONES = '__attribute__((target_clones("avx512f", "avx2", "default")))'
"""FOR_EACH_PROCESSOR in C, where the compiler knows it: code for each processor, chosen when it is loaded."""
SECONDS, PROCESS = 120.0, os.getpid()
WORTH_A_THREAD = 1 << 18
"""Elements that are worth a thread: starting one takes as long as processing some ten thousand."""
HERE = Path(__file__).parent
KINDS = {"P": ctypes.c_void_p, "q": ctypes.c_int64, "i": ctypes.c_int, "I": ctypes.c_uint32, "d": ctypes.c_double}
"""Arguments of C functions: addresses, of tensors for example, and numbers of 64 and of 32 bits."""
FUNCTIONS = {
    "largest_each": "Pq",
    "add_sent_each": "Pq",
    "is_finite": "Pqi",
    "norms": "PqiPP",
    "fold": "PPPqqdiiP",
    "l1_norms": "PqqiPP",
    "cross": "PqqPqPqPii",
    "encode": "PqiiIPP",
    "decode_add": "PqiiPP",
}
"""By name, without what all begin with, the kinds of their arguments."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled C files of this folder; None without a compiler (`cc`, or what CC names) or by the switch."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        found = ctypes.CDLL(str(build(cache_home / "resireduce")))
        for name, kinds in FUNCTIONS.items():
            getattr(found, f"resireduce_{name}").argtypes = [KINDS[kind] for kind in kinds]
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # RuntimeError: there is no home directory
        return None
    if os.getpid() == PROCESS:
        try:  # torch's OpenMP threads spin after each task: others would have to share processors with them
            torchs = ctypes.CDLL(str(Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"))
            found.resireduce_use_team(ctypes.cast(torchs.GOMP_parallel, ctypes.c_void_p))
            # They do not survive a fork, after which OpenMP would wait for them for ever.
            os.register_at_fork(after_in_child=lambda: found.resireduce_use_team(None))
        except (OSError, AttributeError):  # another system, or torch without OpenMP
            pass
    return found


def build(folder: Path) -> Path:
    """Return the path of the compiled code, by a name that changes with all that it depends on.

    It lies in the folder of its source, if an image was built so, or else in `folder`: it is compiled now if it is
    missing, and gets its name last, since another process may compile or load the same file.
    """
    clones = CLONES if (os.uname().machine, platform.libc_ver()[0]) == ("x86_64", "glibc") else ""
    command = [*(shlex.split(os.environ.get("CC", "")) or ["cc"]), *FLAGS, f"-DFOR_EACH_PROCESSOR={clones}"]
    texts = [one.read_text() for one in sorted(HERE.glob("*.[ch]"))]
    told = "/".join([*command, os.uname().machine, os.uname().sysname, *texts])
    name = f"kernels-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"
    built = (HERE if (HERE / name).is_file() else folder) / name
    if not built.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            made = Path(room) / name
            line = [*command, "-o", str(made), *map(str, sorted(HERE.glob("*.c")))]
            subprocess.run(line, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS)
            made.replace(built)
    return built


def threads(numel: int) -> int:
    """Return the number of threads that process `numel` elements: torch's own number, or fewer for a small tensor."""
    return max(1, min(torch.get_num_threads(), numel // WORTH_A_THREAD)) if numel >= 2 * WORTH_A_THREAD else 1


def library_or_plan(*tensors: Tensor) -> ctypes.CDLL | None:
    """Return the compiled code if it is there and takes `tensors`, else None: contiguous float32 on a CPU, or without
    storage, as in a plan, which counts memory."""
    known = all(one.dtype == torch.float32 and one.is_contiguous() for one in tensors)
    return library() if known and all(one.is_cpu or one.is_meta for one in tensors) else None


def library_for(*tensors: Tensor) -> ctypes.CDLL | None:
    """Return what `library_or_plan` does, but None without storage."""
    return None if any(one.is_meta for one in tensors) else library_or_plan(*tensors)


# --- Triton on an NVIDIA GPU, once its kernels have passed a check there ---


GPU_SWITCH = "RESIREDUCE_TRITON"
"""Environment variable: with 0 no kernel in Triton is used."""
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 1 << 30
"""The most elements of a tensor: places are numbers of 32 bits. There is no least number: launching a kernel takes
about as long as launching one of torch's operations, of which it replaces several."""


def in_triton(*tensors: Tensor) -> bool:
    """Return whether Triton's kernels take `tensors`; the first decides by its size and dtype.

    The first call on a GPU compiles the kernels, which takes some 20 s once for a machine, and compares them with plain
    torch; if they fail, it warns, once.
    """
    first = tensors[0]
    if first.device.type != DEVICE or first.dtype not in DTYPES or not 0 < first.numel() <= LARGEST:
        return False
    for one in tensors:  # not by all(): this is asked several times for each gradient
        if type(one) is not Tensor or not one.is_contiguous() or (one is not first and one.device != first.device):
            return False
    return os.environ.get(GPU_SWITCH) != "0" and works(first.device, first.dtype)


def in_one_launch(tensors: Sequence[Tensor]) -> bool:
    """Return whether kernels on a GPU take `tensors` together: of one dtype, none empty, of 2^31 elements in all."""
    known = tensors[0].dtype
    alike = in_triton(*tensors) and all(one.dtype == known and 0 < one.numel() <= LARGEST for one in tensors)
    return alike and sum(one.numel() for one in tensors) < 2 * LARGEST


@cache
def works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton is there and its kernels, compiled now, have plain torch's bits on `device` for `dtype`."""
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    if not capable or find_spec("triton") is None:
        return False
    try:
        from resireduce.kernels.gpu import self_check

        wrong = self_check.differing(device, dtype)
        reason = f"other results than plain torch: {', '.join(wrong)}" if wrong else ""
    except Exception as error:  # no C compiler, no place for compiled code, a version of Triton that is too new, ...
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if reason:
        text = f"kernels in Triton are not used on {device} for {dtype}: {reason}. Plain torch does the same"
        warnings.warn(f"{text}; {GPU_SWITCH}=0 is a way to say so beforehand", stacklevel=4)
    return not reason


# --- The k largest magnitudes, exact and with defined ties: of equal ones those with the highest indices are chosen ---


GROUP = 1 << 16
"""Elements that compiled code counts apart, in four bytes."""
SMALLEST, PIECES = 1 << 11, 128
"""Least number of elements for which a selection has room, and the part of a tensor for which it has at least."""
KEY_BITS = 32
"""Lower bits of a key, which tell of two equal magnitudes the one with the higher index."""
BYTES, PACKED = 8, [torch.float32, torch.int32]
"""Bytes of a packed element, and the dtypes of its value and its index."""


def index_dtype(like: Tensor) -> torch.dtype:
    """Return in which dtype flat indices of a tensor `like` this one travel: int32, and int64 from 2^31 elements on."""
    return torch.int32 if like.numel() <= torch.iinfo(torch.int32).max else torch.int64


def largest_magnitudes(flat: Tensor, k: int) -> Tensor:
    """Return indices (int64, ascending) of the `k` elements of 1-D `flat` with the largest magnitude.

    Of equal ones those with the highest indices are chosen, whatever the device or the number of threads. Extra memory
    is of the order of k elements and of some per cent of all, for any values. There must be no NaN.
    """
    n = flat.numel()
    if k >= n:
        return torch.arange(n, device=flat.device)
    if in_one_launch([flat]):
        return largest_of_each([flat], [k])[0]
    packed = torch.empty(BYTES * k, dtype=torch.uint8, device=flat.device)
    if not largest_each([(flat, k, None, packed)], takes=False):
        del packed
        return by_keys(flat, k)
    return packed[BYTES // 2 * k :].view(torch.int32).long()


def largest_of_each(tensors: Sequence[Tensor], ks: Sequence[int]) -> list[Tensor]:
    """Return what `largest_magnitudes` does for each of several 1-D tensors: on a GPU in one set of launches."""
    if not in_one_launch(tensors):
        return [largest_magnitudes(one, k) for one, k in zip(tensors, ks, strict=True)]
    from resireduce.kernels.gpu import bucket

    return bucket.select(tensors, ks)


def by_keys(flat: Tensor, k: int, piece: int | None = None) -> Tensor:
    """Return what `largest_magnitudes` does for `flat` and `k`, in plain torch, without reading from the device.

    Each element has a key, one number, by which all are ordered, ties too. The largest k keys so far are held, and
    compared with those of each further `piece` of elements.
    """
    n = flat.numel()
    if flat.dtype == torch.float64 or n > 1 << KEY_BITS:
        return flat.abs().sort(stable=True).indices[-k:].sort().values
    least = SMALLEST if flat.is_cpu or flat.is_meta else GROUP  # each piece is some launches
    best = torch.empty(0, dtype=torch.int64, device=flat.device)
    for part in slices(n, piece or max(least, -(-n // 64), k // 4)):
        keys = flat[part].abs().view(torch.int32 if flat.element_size() == 4 else torch.int16).long()
        keys.bitwise_left_shift_(KEY_BITS).add_(torch.arange(part.start, part.stop, device=flat.device))
        keys = torch.cat((best, keys))
        best = torch.topk(keys, min(k, keys.numel()), sorted=False).values
    return best.bitwise_and_((1 << KEY_BITS) - 1).sort().values


# --- The same by one call of compiled code for several tensors ---
#
# Two scans are enough in nearly all cases: one of a sample, which estimates a border, and one of all elements, of which
# those that reach the border are candidates (as in DGC, Lin et al., ICLR 2018, but exact).


MEMBERS = Struct("2P5q2i3P0P")
"""Layout of a structure of arguments for one tensor; several follow one another."""


def largest_each(tensors: Sequence[tuple[Tensor, int, Tensor | None, Tensor]], takes: bool = True) -> int:
    """Pack the largest magnitudes of several tensors, and return 1, or 2 if NaN or infinity is among these.

    Return 0, and do nothing, for anything but contiguous float32 on a CPU, fewer than 2^31 each, or without a
    compiler. Without storage, as much memory is taken as with it.

    Args:
        tensors: the elements, of any shape; how many of them are selected, one to all; what is added to them first, in
            place; and 1-D uint8 memory that receives float32 values and then int32 indices, both in the order of the
            indices. Magnitudes are in the order of their bits: NaN is larger than infinity.
        takes: whether the selected elements become zero.
    """
    compiled = library_or_plan(*(one for dense, _, added, _ in tensors for one in (dense, added) if one is not None))
    shapes = [(dense.numel(), k) for dense, k, *_ in tensors]
    alike = all(added is None or added.shape == dense.shape for dense, _, added, _ in tensors)
    if compiled is None or not alike or not all(0 < k <= n < 1 << 31 for n, k in shapes):
        return 0
    nbytes = max(_scan(*shape)[-1] for shape in shapes)
    scratch = tensors[0][0].new_empty(nbytes, dtype=torch.uint8)
    if scratch.is_meta:  # a plan, which counts memory
        return 1
    structures, room = [], scratch.data_ptr()
    for (dense, k, added, packed), shape in zip(tensors, shapes, strict=True):
        pointers = dense.data_ptr(), 0 if added is None else added.data_ptr()
        numbers = *shape, *_scan(*shape)[:-1], threads(shape[0]), takes
        to = packed.data_ptr()
        structures.append(MEMBERS.pack(*pointers, *numbers, room, to, to + BYTES // 2 * k))
    return int(compiled.resireduce_largest_each(b"".join(structures), len(tensors)))


@cache
def _scan(n: int, k: int) -> tuple[int, int, int, int]:
    """Return the step of a sample of `n` elements, the border's rank in it, for how many candidates there is room, and
    the bytes for them; no room if the sample would be too small, so that all elements are counted.

    The `k` largest reach the border very probably, and few others do: it is four standard errors low. The sample is as
    sparse as the room for those that reach the border allows, and no sparser than pays: each element of the sample is
    read by itself, and so is each that reaches the border.
    """
    nbytes = 13 * min(n, k + max(k // 4, GROUP if n > GROUP * PIECES else max(SMALLEST, n // PIECES)))
    room = min(n, nbytes // 9)  # two numbers for each, and a byte for what is counted
    step = coprime_step(n, max(16, n >> 16, n // (2 * room) + 1))  # 65,536 of a large tensor
    while n // step > max(2048, 4 * (k * step) ** 0.5):
        sparser = coprime_step(n, step + step // 4)
        rank = _rank(k / sparser)
        if sparser * (rank + 4 * rank**0.5) > room:  # as many reach the border at most
            break
        step = sparser
    size = -(-n // step)
    rank = _rank(k / n * size)
    return (step, rank, room, nbytes) if rank < size and n <= GROUP // 4 * room else (1, 0, 0, 4 * -(-n // GROUP))


def _rank(expected: float) -> int:
    """Return the rank of the border in a sample that has `expected` of the largest elements."""
    return int(expected + 4 * expected**0.5 + 4)


# --- Elements that were sent are added to their places by one call of compiled code or one kernel: calls cost time ---


SENT = Struct("Pq2Pqf2i0P")
"""Layout of a structure of arguments: what one rank sent of one tensor."""


def add_sent_each_(sent: Sequence[tuple[Tensor, Sequence[Payload]]], scale: float, zero: bool) -> bool:
    """Add `scale` x what all ranks sent of several tensors to its places in them; return whether that was done.

    False, and nothing is done, for what is not contiguous float32 with int32 indices, where there is neither compiled
    code for the CPU nor Triton for the GPU, or if on a CPU indices do not ascend, or one is none of its tensor.

    Args:
        sent: each tensor, and what each rank sent of it, in one form: values and their indices.
        scale: a factor of the values; the product is rounded before it is added.
        zero: whether the tensors are set to zeros before.
    """
    targets, packed = [dense for dense, _ in sent], [[(one.buffer, one.layout[0][1]) for one in own] for _, own in sent]
    parts, forms = [part for own in packed for part in own], [[dtype for dtype, _ in own[0].layout] for _, own in sent]
    if any(form != PACKED for form in forms) or any(buffer.nbytes != BYTES * count for buffer, count in parts):
        return False
    if targets[0].dtype == torch.float32 and all(count for _, count in parts) and in_one_launch(targets):
        from resireduce.kernels.gpu import bucket

        bucket.add_topk_(targets, packed, scale, zero)
        return True
    compiled = library_for(*targets)
    if compiled is None or not all(buffer.is_cpu and buffer.is_contiguous() for buffer, _ in parts):
        return False
    structures = []
    for dense, own in zip(targets, packed, strict=True):
        for number, (buffer, count) in enumerate(own):
            places = dense.data_ptr(), dense.numel(), buffer.data_ptr(), buffer.data_ptr() + BYTES // 2 * count
            structures.append(SENT.pack(*places, count, scale, zero and not number, threads(dense.numel())))
    return bool(compiled.resireduce_add_sent_each(b"".join(structures), len(structures)))


# --- Norms of tensors, of their rows, columns and blocks ---


LANES, PIECE = 16, 1 << 16
"""Number of partial sums side by side, to which the elements of a piece are added in turn, and elements of a piece."""


def is_finite(x: Tensor) -> bool:
    """Return whether no element of `x` is NaN or infinite; True without storage. The host waits for the device of `x`.

    Without compiled code, a finite sum proves it, and is cheaper than the largest magnitude, which is computed if the
    sum is not finite.
    """
    if (compiled := library_for(x)) is not None:
        return bool(compiled.resireduce_is_finite(x.data_ptr(), x.numel(), threads(x.numel())))
    return x.is_meta or isfinite(x.sum().item()) or isfinite(torch.linalg.vector_norm(x, torch.inf).item())


def l1_and_l2_norm(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the L1 and the L2 norm of all elements of `x`: 0-D, in float32 at least.

    On a CPU sums are formed in float64, with the same result for any number of threads: torch would add one by one, and
    find half of the L1 norm of 10^8 elements by one thread. On a GPU it forms them in float32: the last bit may differ.
    """
    dtype = torch.promote_types(x.dtype, torch.float32)
    if x.device.type not in ("cpu", "meta"):
        l1, l2 = (torch.linalg.vector_norm(x, order, dtype=dtype) for order in (1, 2))
        return l1, l2
    if (norms := _norms_in_c(x)) is not None:
        return norms[0], norms[1]
    flat = x.detach().reshape(-1)
    sums = torch.zeros(flat.numel() // PIECE + 1, 2, LANES, dtype=torch.float64, device=flat.device)
    for own, part in zip(sums, flat.split(PIECE), strict=False):
        values = pad(part.abs().double(), (0, -part.numel() % LANES)).view(-1, LANES)
        own[0] = values.cumsum(0)[-1]  # one after the other, as a sum would not add them up
        own[1] = values.square_().cumsum(0)[-1]
    lanes = sums.cumsum(0)[-1]  # one piece after the other
    while lanes.shape[1] > 1:  # pairwise
        first, second = lanes.chunk(2, 1)
        lanes = first + second
    magnitudes, squares = lanes.view(-1)
    return magnitudes.to(dtype), squares.sqrt().to(dtype)


def _norms_in_c(x: Tensor) -> Tensor | None:
    """Return both norms of `l1_and_l2_norm` in one tensor; None for what compiled code does not take."""
    flat = x.detach().reshape(-1)
    compiled = library_or_plan(flat)
    if compiled is None:
        return None
    pieces, norms = flat.numel() // PIECE + 1, flat.new_empty(2)
    room = flat.new_empty(pieces, 2, LANES, dtype=torch.float64)  # for the sums of magnitudes and of squares
    if not flat.is_meta:
        sizes = flat.numel(), threads(flat.numel())
        compiled.resireduce_norms(flat.data_ptr(), *sizes, room.data_ptr(), norms.data_ptr())
    return norms


def mean_norm(x: Tensor, phi: float) -> Tensor:
    """Return phi |x|_1 / n + (1 - phi) |x|_2 / sqrt(n) of all n elements of `x`: 0-D, in float32 at least."""
    l1, l2 = l1_and_l2_norm(x)
    return phi * l1 / x.numel() + (1 - phi) * l2 / x.numel() ** 0.5


def folder_of(errors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]] | None:
    """Return the function that folds `errors` into sums: `fold_`, or on a GPU its own; None for what neither takes."""
    if in_one_launch(errors):
        from resireduce.kernels.gpu import bucket

        return bucket.fold_
    return None if library_or_plan(*errors) is None else fold_


def fold_(
    sums: Sequence[tuple[Tensor, Tensor | None]],
    errors: Sequence[Sequence[tuple[Tensor, Tensor | None]]],
    into: Sequence[tuple[Tensor, bool]],
    phi: float | None,
) -> Sequence[Tensor]:
    """Add to each of several sums some errors, one after the other, each times its `mean_norm`, or 1 without `phi`.

    Products, sums and quotients are rounded each, on every device: addcmul_ would round once, but not everywhere.

    Args:
        sums: contiguous float32, and the sum of weights so far, 0-D; None: there is none, and this is memory for it,
            which may be that of its first error.
        errors: those of each sum, at least one, and what compression has told of their norms: on a GPU what
            `sum_chunks` returns, or None, and here None.
        into: where each sum is written, float32, and whether it is divided by the sum of weights first: zeros stay
            zeros, and do not become 0 / 0.
        phi: weight of the L1 norm.

    Returns:
        the new sums of weights: 0-D.
    """
    made = []
    for (total, so_far), own, (to, is_average) in zip(sums, errors, into, strict=True):
        weights = total.new_empty(()) if so_far is None else so_far
        made.append(weights)
        norms = [None if phi is None else _norms_in_c(error) for error, _ in own]
        compiled = library_for(total)
        if compiled is not None:
            addresses = [0 if one is None else one.data_ptr() for one in (*(error for error, _ in own), *norms)]
            listed = Struct(f"{len(addresses)}P").pack(*addresses)
            before, sizes = 0 if so_far is None else total.data_ptr(), (len(own), total.numel(), phi or 0)
            how = is_average, threads(total.numel()), weights.data_ptr()
            compiled.resireduce_fold(to.data_ptr(), before, listed, *sizes, *how)
    return made


def l1_norms(matrix: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the L1 norms of the rows and of the columns of 2-D `matrix`: 1-D, in `dtype`, in which sums are formed.

    Compiled code gives the same bits; for a single row or column torch splits sums among its threads.
    """
    compiled = library_for(matrix) if dtype == torch.float32 and min(matrix.shape) > 1 else None
    if compiled is None:
        by_row, by_column = (torch.linalg.vector_norm(matrix, 1, dim=dim, dtype=dtype) for dim in (1, 0))
        return by_row, by_column
    by_row, by_column = (matrix.new_zeros(size) for size in matrix.shape)
    sizes = *matrix.shape, threads(matrix.numel())
    compiled.resireduce_l1_norms(matrix.data_ptr(), *sizes, by_row.data_ptr(), by_column.data_ptr())
    return by_row, by_column


def cross(matrix: Tensor, rows: Tensor, columns: Tensor, values: Tensor, adds: bool) -> bool:
    """Add 2-D `values` to where 1-D `rows` cross 1-D `columns` of 2-D `matrix`, or copy that to `values`.

    Return whether that was done: if all are contiguous, numbers are int32 and ascend, and there is compiled code.
    """
    if in_triton(matrix, rows, columns, values):
        from resireduce.kernels.gpu import one_pass

        one_pass.cross_(matrix, rows, columns, values, adds)
        return True
    numbers = all(one.dtype == torch.int32 and one.is_contiguous() for one in (rows, columns))
    compiled = library_or_plan(matrix, values)
    if compiled is None or not numbers or values.shape != (len(rows), len(columns)):
        return False
    if matrix.is_meta:
        return True
    at = rows.data_ptr(), len(rows), columns.data_ptr(), len(columns)
    count = threads(values.numel())
    return bool(compiled.resireduce_cross(matrix.data_ptr(), *matrix.shape, *at, values.data_ptr(), adds, count))


def norms_of_blocks(flat: Tensor, size: int, order: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return the norm of this `order` of each `size` elements of 1-D `flat`, the last perhaps fewer, in `dtype`."""
    until = flat.numel() - flat.numel() % size
    parts = [part for part in (flat[:until].view(-1, size), flat[until:].view(1, -1)) if part.numel()]
    if order == torch.inf and flat.is_cpu:  # torch's largest magnitude takes twenty times as long there
        norms = [torch.maximum(rows.amax(1), rows.amin(1).neg_()).abs_().to(dtype or rows.dtype) for rows in parts]
    else:
        norms = [torch.linalg.vector_norm(rows, order, dim=1, dtype=dtype) for rows in parts]
    return torch.cat(norms) if len(norms) > 1 else norms[0]


def infinity_norm(flat: Tensor) -> Tensor:
    """Return the largest magnitude of the elements of 1-D `flat`: 0-D, NaN if one is NaN."""
    return norms_of_blocks(flat, flat.numel(), torch.inf).view(())
