"""Reads a folder of images: `class/file.png`, or `client/class/file.png`; needs the extra `images`.

The names of the folders are the names of the classes and the clients. Folders `train` and `test` (or `val`)
on top of either are an official split. Pictures in more than one colour make all of them colour images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipfl.data.dataset import Dataset, divide_points, split_dataset
from ipfl.data.own.archives import refuse_damaged
from ipfl.data.own.table_encoding import number_texts
from ipfl.errors import InputError, require_extra

if TYPE_CHECKING:
    from PIL.Image import Image

    from ipfl.config.task_section import TaskConfig

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
TRAIN_FOLDERS, TEST_FOLDERS = ("train", "training"), ("test", "val", "valid", "validation")
"""Names of the folders of an official split."""
MAX_PIXELS = 2**24
"""Of one image: a small file may unpack to gigabytes."""
_GREY_MODES = ("1", "L", "I", "I;16", "F")


def read_images(path: Path, settings: TaskConfig) -> Dataset:
    """A folder of images.

    Raises:
        InputError: There are none, they lie in neither of the two ways, one is damaged, or they differ in
            size and `image_size` is not set.
    """
    require_extra("PIL", "images")
    if settings.predict != "classes":
        raise InputError(f"{path}: folders name classes, so predict = {settings.predict!r} does not fit")
    if not path.is_dir():
        raise InputError(f"there is no folder {path}")
    files = sorted(
        file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
    )
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    places = [file.relative_to(path).parts[:-1] for file in files]
    is_test = _official_test(places)
    if is_test is not None:
        places = [place[1:] for place in places]
    depths = {len(place) for place in places}
    if depths not in ({1}, {2}):
        found = "no images" if not files else f"images {' and '.join(map(str, sorted(depths)))} folders deep"
        raise InputError(f"{path}: expected class/image.png or client/class/image.png, found {found}")
    x = _read_files(files, settings.image_size)
    y, classes = number_texts([place[-1] for place in places], settings.class_names, str(path))
    fields: dict[str, Any] = {"classes": len(classes), "class_names": tuple(classes)}
    group = None
    if depths == {2}:
        group, clients = number_texts([place[0] for place in places], (), str(path))
        fields["group_names"] = tuple(clients)
    if len(classes) < 2:
        raise InputError(f"{path}: there is only the class {classes[0]!r}: nothing to learn")
    if is_test is None:
        return split_dataset(path.name, x, y, group, **fields)
    return divide_points(path.name, x, y, group, is_test, **fields)


def _official_test(places: Sequence[tuple[str, ...]]) -> NDArray[np.bool_] | None:
    """True for images in a folder of test images; None if there is no official split.

    With both `test` and `val`, the latter is training data.
    """
    tops = {place[0].lower() for place in places if place}
    tests = [name for name in TEST_FOLDERS if name in tops]
    if not tests or not tops <= {*TRAIN_FOLDERS, *TEST_FOLDERS} or not tops & set(TRAIN_FOLDERS):
        return None
    return np.array([place[0].lower() == tests[0] for place in places])


def _read_files(files: Sequence[Path], size: int | None) -> NDArray[np.uint8]:
    """(n, height, width, channels) of all files; a grey picture among colour ones becomes one, too."""
    images = [_read_file(file, size) for file in files]
    channels = max(image.shape[2] for image in images)
    sizes = Counter(image.shape[:2] for image in images)
    if len(sizes) > 1:
        (usual, count), *_ = sizes.most_common()
        other = next(file for file, image in zip(files, images, strict=True) if image.shape[:2] != usual)
        raise InputError(
            f"images differ in size: {count} of {len(files)} are {usual[1]}×{usual[0]}, but not {other}; "
            f"have all scaled with image_size = {min(usual)}"
        )
    return np.stack(
        [image if image.shape[2] == channels else np.repeat(image, 3, axis=2) for image in images]
    )


def _read_file(file: Path, size: int | None) -> NDArray[np.uint8]:
    import PIL.Image

    try:
        with refuse_damaged(file), PIL.Image.open(file) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}×{image.height} points are too many")
            read = _eight_bits(image).convert("L" if image.mode in _GREY_MODES else "RGB")
            if size is not None:
                read = read.resize((size, size), PIL.Image.Resampling.BILINEAR)
            pixels = np.asarray(read, dtype=np.uint8)
    except PIL.Image.DecompressionBombError as error:
        raise InputError(f"cannot read {file}: {error}") from error
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _eight_bits(image: Image) -> Image:
    """The image; one with 16 bits is scaled, where Pillow's own conversion would cut bits off."""
    import PIL.Image

    if image.mode not in ("I", "I;16", "F"):
        return image
    scaled = np.rint(np.asarray(image, dtype=np.float64) * (255 / 65535)).clip(0, 255)
    return PIL.Image.fromarray(scaled.astype(np.uint8))
