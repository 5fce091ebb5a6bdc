import torch

from rollmill.worldmodel.encoder.conv_stack import Painter, Reader, grid, padding, squared_error, to_bytes


def test_sides_that_do_not_halve_evenly_are_padded_and_cut_again() -> None:
    assert padding((72, 128, 3), 4) == (8, 0)
    assert grid((72, 128, 3), 4) == (5, 8)
    shape = (10, 7, 2)
    reader, painter = Reader(shape, (3, 5)), Painter(shape, (3, 5), size=4)
    assert reader(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, reader.features) == (2, 5 * 3 * 2)
    assert painter(torch.zeros(2, 4)).shape == (2, 2, 10, 7)


def test_the_error_is_the_sum_over_an_image() -> None:
    images = torch.full((3, 4, 5, 2), 255, dtype=torch.uint8)
    assert float(squared_error(torch.zeros(3, 2, 4, 5), images)) == 4 * 5 * 2
    assert float(squared_error(torch.ones(3, 2, 4, 5), images)) == 0


def test_pixels_are_rounded_and_bounded() -> None:
    painted = torch.tensor([-1.0, 0.0, 0.5, 1.0, 2.0]).reshape(1, 1, 1, 5)
    assert to_bytes(painted).flatten().tolist() == [0, 0, 128, 255, 255]
