"""The colours of lines."""

from stoker.record._looks import Look, looks


def test_training_and_validation_have_their_own():
    found = looks(["lr", "valid/loss", "train/loss"])
    assert found == {"lr": Look("#009E73"), "valid/loss": Look("#E69F00"), "train/loss": Look("#0072B2")}


def test_no_two_lines_look_alike_until_there_are_many():
    many = looks([f"valid/recall/{number}" for number in range(16)])
    assert len(set(many.values())) == 16 and many["valid/recall/0"].colour == "#E69F00"
