"""Data and its corruption: the right share, the right classes, and the same points for every loss."""

import gzip

import numpy as np
import pytest
import torch

from experiments.label_noise import data
from experiments.label_noise.data import Condition, Split, corrupted, images, mixture, read_mnist


def split_of(n=20_000):
    return Split(torch.ones(1, n, 2), torch.arange(n)[None] % 10)


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_symmetric_noise_moves_labels_evenly_to_all_other_classes(share):
    clean = split_of()
    noisy = corrupted(clean, Condition(kind="symmetric", share=share), [0])
    jumps = (noisy.y - clean.y)[0] % 10
    assert (jumps != 0).float().mean() == pytest.approx(share, abs=0.015)
    counts = torch.bincount(jumps, minlength=10)[1:].float()
    assert counts.min() > 0.8 * counts.mean() and torch.equal(noisy.x, clean.x)


def test_asymmetric_noise_moves_labels_to_the_next_class_alone():
    clean = split_of()
    jumps = (corrupted(clean, Condition(kind="asymmetric", share=0.4), [0]).y - clean.y)[0] % 10
    assert set(jumps.tolist()) == {0, 1}
    assert jumps.float().mean() == pytest.approx(0.4, abs=0.015)


def test_outliers_lie_far_out_and_have_wrong_labels_and_no_other_point_changes():
    clean = split_of()
    noisy = corrupted(clean, Condition(kind="outliers", share=0.1), [0])
    far = noisy.x[0, :, 0] == data.OUTLIER_REACH
    assert torch.equal(far, noisy.y[0] != clean.y[0]) and (noisy.x[0, ~far] == 1).all()
    assert far.float().mean() == pytest.approx(0.1, abs=0.015)


def test_clean_data_stay_as_they_are_and_a_higher_share_spoils_the_same_points_and_more():
    clean = split_of()
    assert torch.equal(corrupted(clean, Condition(kind="clean", share=0.0), [0]).y, clean.y)
    few, many = (corrupted(clean, Condition(kind="symmetric", share=s), [0]).y != clean.y for s in (0.2, 0.4))
    assert (many | ~few).all()


def test_each_seed_has_a_mixture_of_its_own_that_does_not_depend_on_the_other_seeds():
    both, second = mixture([0, 1], (40, 20, 10)), mixture([1], (40, 20, 10))
    assert both.train.x.shape == (2, 40, 20) and both.test.y.shape == (2, 10)
    assert torch.equal(both.train.x[1], second.train.x[0]) and not torch.equal(both.train.x[0], both.train.x[1])
    torch.testing.assert_close(both.train.x.mean(1), torch.zeros(2, 20), atol=1e-5, rtol=0)


@pytest.fixture
def mnist_like():
    random = np.random.default_rng(0)
    sizes = (("x_train", 60), ("x_test", 30))
    arrays = {name: random.integers(0, 256, (n, 28, 28), dtype=np.uint8) for name, n in sizes}
    return arrays | {"y_train": np.arange(60, dtype=np.uint8) % 10, "y_test": np.arange(30, dtype=np.uint8) % 10}


def as_idx(array):
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return b"\x00\x00\x08" + bytes([array.ndim]) + shape + array.tobytes()


def test_images_are_read_from_an_archive_and_from_the_original_files(mnist_like, tmp_path):
    np.savez(tmp_path / "mnist.npz", **mnist_like)
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, key in zip(data._IDX_NAMES, data._ARRAYS, strict=True):
        content = as_idx(mnist_like[key])
        if key == "x_train":
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    for path in (tmp_path / "mnist.npz", folder):
        for key, found in zip(data._ARRAYS, read_mnist(path), strict=True):
            assert np.array_equal(found, mnist_like[key])
    drawn = images(folder, [0, 1], (40, 10, 20))
    assert drawn.train.x.shape == (2, 40, 196) and drawn.test.x.shape == (2, 20, 196)


def test_whole_images_keep_their_pixels_and_share_one_mean_and_scale(mnist_like, tmp_path):
    mnist_like["x_train"][:, 0, 0] = 0
    np.savez(tmp_path / "mnist.npz", **mnist_like)
    drawn = images(tmp_path / "mnist.npz", [0, 1], (40, 10, 20), name="other", whole=True)
    assert drawn.name == "other" and drawn.train.x.shape == (2, 40, 784)
    for x in drawn.train.x:
        assert x.mean().abs() < 1e-5 and x.std() == pytest.approx(1, abs=1e-4)
        assert (x[:, 0] == x.min()).all()  # no pixel is standardised by itself
    np.savez(tmp_path / "small.npz", **mnist_like)
    with pytest.raises(ValueError, match="at least 50 images of 32 x 32"):
        images(tmp_path / "small.npz", [0], (40, 10, 20), side=32, whole=True)


def test_paths_without_images_are_clear_errors(tmp_path):
    with pytest.raises(ValueError, match=r"--data must be an \.npz file or a folder"):
        read_mnist(tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match=r"not found, nor as \.gz"):
        read_mnist(tmp_path)
    np.savez(tmp_path / "other.npz", x_train=np.zeros(1))
    with pytest.raises(
        ValueError, match=r"other.npz: y_train .* it must hold the arrays x_train, y_train, x_test, y_test"
    ):
        read_mnist(tmp_path / "other.npz")


def test_files_that_are_broken_or_too_small_are_clear_errors(mnist_like, tmp_path):
    (tmp_path / "junk.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"junk.npz: not an .npz of plain arrays"):
        read_mnist(tmp_path / "junk.npz")
    for content in (b"", b"junk", as_idx(mnist_like["x_train"])[:-1]):
        (tmp_path / data._IDX_NAMES[0]).write_bytes(content)
        with pytest.raises(ValueError, match="not an IDX file of bytes, or a truncated one"):
            read_mnist(tmp_path)
    np.savez(tmp_path / "mnist.npz", **mnist_like)
    with pytest.raises(ValueError, match=r"must hold at least 61 images of 28 x 28 .* got images \(60, 28, 28\)"):
        images(tmp_path / "mnist.npz", [0], (51, 10, 20))
