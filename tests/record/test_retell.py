from stoker.record._foreign_names import spelled
from stoker.record._retell import Row, retold


def told(*rows):
    names = spelled(name for row in rows for name in row.values)
    return [
        (event.kind, event.epoch, event.update, dict(event.values)) for event in retold(rows, names, plan="imported")
    ]


def test_numbers_are_told_by_the_kind_of_event_that_a_fit_has_for_them():
    assert told(
        Row(1, None, 1.0, {"lr": 0.1}),
        Row(2, 1, 2.0, {"train_loss_step": 3.0}),
        Row(4, 1, 4.0, {"val_loss": 1.0, "test_loss": 2.0, "train_loss_epoch": 1.5}),
        Row(8, 2, 8.0, {"val_loss": 0.5}),
    ) == [
        ("begin", 0, 0, {}),
        ("log", 1, 1, {"lr": 0.1}),
        ("progress", 1, 2, {"train/loss": 3.0}),
        ("valid", 1, 4, {"valid/loss": 1.0}),
        ("valid", 1, 4, {"test/loss": 2.0}),
        ("train", 1, 4, {"train/loss": 1.5}),
        ("epoch", 1, 4, {"lr": 0.1, "valid/loss": 1.0, "test/loss": 2.0, "train/loss": 1.5}),
        ("valid", 2, 8, {"valid/loss": 0.5}),
        ("epoch", 2, 8, {"valid/loss": 0.5}),
        ("end", 2, 8, {}),
    ]


def test_where_a_log_knows_no_epochs_a_validation_ends_one():
    rows = [Row(update, None, float(update), {"loss": 1.0}) for update in range(1, 5)]
    rows[1] = Row(2, None, 2.0, {"loss": 1.0, "val_loss": 1.0})
    rows.insert(2, Row(2, None, 2.0, {"val_acc": 0.5}))
    assert [(epoch, update) for kind, epoch, update, _ in told(*rows) if kind == "log"] == [
        (1, 1),
        (1, 2),
        (2, 3),
        (2, 4),
    ]
    assert [entry[1:] for entry in told(*rows) if entry[0] == "epoch"] == [
        (1, 2, {"loss": 1.0, "valid/loss": 1.0, "valid/acc": 0.5}),
        (2, 4, {"loss": 1.0}),
    ]


def test_a_training_number_that_comes_often_is_no_result_of_an_epoch():
    rows = [Row(update, 1, float(update), {"train/loss": float(update)}) for update in range(1, 4)]
    assert [entry[0] for entry in told(*rows)] == ["begin", "log", "log", "log", "epoch", "end"]


def test_the_first_and_the_last_event_say_what_is_known():
    begin, *_, end = retold([Row(1, 1, 5.0, {"a": 1.0}), Row(9, 3, 15.0, {"a": 2.0})], spelled(["a"]), plan="from x")
    assert begin.time == 5.0 and begin.extra["plan"] == ["from x"]
    assert begin.extra["metrics"]["accuracy"]["direction"] == "max"
    assert end.extra == {"epochs": 3, "updates": 9, "seconds": 10.0}
