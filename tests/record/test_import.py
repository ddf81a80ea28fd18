import pytest
from torch.utils.tensorboard import SummaryWriter

from stoker import BadFile, MissingFile, RunExists
from stoker.record import Follower, History, Run, TensorBoardFile, import_log, runs_in

# As Lightning 2.6 wrote it: CSVLogger, a LearningRateMonitor, log_every_n_steps=2, four updates an epoch.
LIGHTNING = """epoch,lr-SGD,step,train_loss_epoch,train_loss_step,val_acc,val_loss
,0.1,0,,,,
,0.1,1,,,,
0,,1,,0.1619841754436493,,
,0.1,3,,,,
0,,3,,3.250458240509033,,
0,,3,,,0.5,1.5044350624084473
0,,3,1.750396490097046,,,
,0.1,4,,,,
,0.1,5,,,,
1,,5,,0.3217083811759949,,
,0.1,7,,,,
1,,7,,2.715946912765503,,
1,,7,,,0.5,1.5022565126419067
1,,7,1.6794841289520264,,,
"""
HPARAMS = "hidden: 4\nlr: 0.1\nnames: !!python/tuple\n- a\n- b\n"


@pytest.fixture
def version(tmp_path):
    folder = tmp_path / "lightning_logs" / "version_0"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text(LIGHTNING)
    (folder / "hparams.yaml").write_text(HPARAMS)
    return folder


def test_a_lightning_log_becomes_a_run_like_any_other(version, tmp_path):
    run = import_log(version, tmp_path / "runs" / "old")
    assert run.record.all("valid/loss") == [(4, 1.5044350624084473), (8, 1.5022565126419067)]
    assert run.record.all("train/loss") == [(4, 1.750396490097046), (8, 1.6794841289520264)]
    assert run.config == {"hidden": 4, "lr": 0.1, "names": ["a", "b"]}
    found = run.summary()
    assert (found["state"], found["epochs"], found["updates"]) == ("finished", 2, 8)
    assert found["best"] == {"name": "valid/loss", "value": 1.5022565126419067, "epoch": 2, "update": 8}
    assert found["started"] <= found["last_event"] == (version / "metrics.csv").stat().st_mtime
    assert History(run.record).columns == ["lr-SGD", "valid/acc", "valid/loss", "train/loss"]
    (listed,) = runs_in(tmp_path / "runs")
    assert listed.path == run.path
    follower = Follower(run.path)
    follower.refresh()
    assert follower.points("train/loss", source="running").value.tolist() == [
        0.1619841754436493,
        3.250458240509033,
        0.3217083811759949,
        2.715946912765503,
    ]
    assert follower.state == "finished" and follower.direction("valid/acc") == "max"


def test_it_is_marked_as_imported(version, tmp_path):
    run = import_log(version, tmp_path / "old")
    about = run.facts["imported"]
    assert about["from"] == str(version) and about["kind"] == "Lightning CSV"
    assert about["names"] == {
        "train_loss_epoch": "train/loss",
        "train_loss_step": "train/loss",
        "val_acc": "valid/acc",
        "val_loss": "valid/loss",
    }
    assert run.facts["command"] == [] and run.facts["versions"] == {}  # nothing to resume, and not this process
    assert run.facts["started"] == run.record.events[0].time
    assert f"imported from {version} (Lightning CSV)" in (run.path / "log.txt").read_text()
    assert Run.open(run.path).id


def test_names_can_stay_as_they_are(version, tmp_path):
    run = import_log(version / "metrics.csv", tmp_path / "old", rename=False)
    assert set(run.record.columns) == {"lr-SGD", "train_loss_step", "train_loss_epoch", "val_acc", "val_loss"}
    assert run.facts["imported"]["names"] == {}


def test_what_torch_wrote_for_tensorboard_becomes_a_run(tmp_path):
    with SummaryWriter(str(tmp_path / "log")) as writer:
        for step in range(4):
            writer.add_scalar("Loss/train", 1.0 / (step + 1), step, walltime=100.0 + step)
            writer.add_scalar("Loss/val", 2.0, step, walltime=100.5 + step)
    run = import_log(tmp_path / "log", tmp_path / "old")
    assert run.record.all("train/Loss")[1] == (1, 0.5) and len(run.record.all("valid/Loss")) == 4
    assert run.summary()["epochs"] == 4 and run.summary()["started"] == 100.5
    assert run.summary()["last_event"] == 103.5 and run.summary()["seconds"] == 3.0
    assert run.facts["imported"]["kind"] == "TensorBoard"


def test_lightnings_own_files_for_tensorboard_say_the_same_as_its_table(version, tmp_path):
    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "hparams.yaml").write_text(HPARAMS)
    with SummaryWriter(str(folder)) as writer:
        for name, value, step in (("val_loss", 1.5, 3), ("epoch", 0, 3), ("val_loss", 1.25, 7), ("epoch", 1, 7)):
            writer.add_scalar(name, value, step)
    run = import_log(folder, tmp_path / "old")
    assert run.record.all("valid/loss") == [(4, 1.5), (8, 1.25)] and run.summary()["epochs"] == 2
    assert run.record.columns == ["valid/loss"] and run.config["hidden"] == 4


def test_folders_below_are_sets_as_keras_writes_them(tmp_path):
    for part, value in (("train", 1.0), ("validation", 2.0)):
        file = TensorBoardFile(tmp_path / "log" / part, update=0)
        for epoch in range(3):
            file.write({"epoch_loss": value + epoch}, update=epoch)
        file.close()
    run = import_log(tmp_path / "log", tmp_path / "old")
    assert run.record.all("train/epoch_loss") == [(0, 1.0), (1, 2.0), (2, 3.0)]
    assert run.record.series("valid/epoch_loss") == [2.0, 3.0, 4.0]


def test_a_problem_with_the_hyperparameters_is_a_warning(version, tmp_path):
    (version / "hparams.yaml").write_text("a: [")
    run = import_log(version, tmp_path / "old")
    assert run.config is None
    assert [event.text[:25] for event in run.record.events_of("warning")] == ["hparams.yaml is left out:"]


def test_what_is_no_log_is_refused_and_nothing_is_made(tmp_path, version):
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(MissingFile, match="there is nothing at "):
        import_log(tmp_path / "nowhere", tmp_path / "old")
    with pytest.raises(BadFile, match=r"holds no log that is known: expected metrics.csv \(Lightning's\)"):
        import_log(empty, tmp_path / "old")
    with pytest.raises(BadFile, match="is a file; expected the folder that the log is in"):
        import_log(tmp_path / "file.txt", tmp_path / "old")
    (empty / "metrics.csv").write_text("epoch,step\n")
    with pytest.raises(BadFile, match="has no numbers in it"):
        import_log(empty, tmp_path / "old")
    assert not (tmp_path / "old").exists()
    import_log(version, tmp_path / "old")
    with pytest.raises(RunExists, match="already holds a run"):
        import_log(version, tmp_path / "old")
