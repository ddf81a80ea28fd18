"""Text classification with Transformers: a BERT that computes its own loss is trained as it is.

The reviews are written by code; the model is small and starts from random weights. A pretrained model and its tokenizer
go in at the same places. Prints the validation accuracy. Takes about ten seconds.
"""

import random

import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

import stoker
from stoker import metrics, schedule

WORDS = {
    True: ["superb", "moving", "clever", "warm", "gripping"],
    False: ["dull", "clumsy", "empty", "cold", "tedious"],
}


def write_review():
    """One to three sentences that all praise, or all complain; a "not" turns the meaning of a word around."""
    good, sentences = random.random() < 0.5, []
    for _ in range(random.randint(1, 3)):
        negated = random.random() < 0.4
        word = random.choice(WORDS[good != negated])
        part = random.choice(["plot", "acting", "script", "music"])
        sentences.append(f"the {part} was {'not ' * negated}{word}")
    return " and ".join(sentences), int(good)


random.seed(0)
torch.manual_seed(0)
reviews, labels = zip(*(write_review() for _ in range(2000)), strict=True)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({word for review in reviews for word in review.split()})]
tokenizer = BertTokenizer({word: number for number, word in enumerate(words)})
rows = {**tokenizer(list(reviews), padding=True, return_tensors="pt"), "labels": torch.tensor(labels)}
valid = {name: column[1500:] for name, column in rows.items()}
train = {name: column[:1500] for name, column in rows.items()}
config = BertConfig(
    vocab_size=len(words), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
)
learner = stoker.Learner(
    BertForSequenceClassification(config),
    lr=schedule.cosine(2e-3, warmup=0.1),  # over the updates of the fit
    metrics=[metrics.Accuracy()],
    clip_norm=1.0,
    seed=0,
)
fitted = learner.fit(train, valid=valid, epochs=4, batch_size=32, monitor="valid/accuracy")
print(f"validation accuracy: {fitted.evaluate(valid)['accuracy']:.3f}")
logits = fitted.predict(tokenizer(["the script was not dull"], return_tensors="pt"))["logits"]
print(f'"the script was not dull" is praise: {logits.softmax(1)[0, 1]:.1%}')
