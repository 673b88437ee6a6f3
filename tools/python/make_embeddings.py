#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Embeds texts of several languages with a BERT and writes them as one safetensors file.

The file has `embeddings` [N, d], `label` [N] int64 and `language` [N] int64, and in its metadata the names of
`classes` and `languages` as JSON lists: what a dataset of the format `embeddings` is read from. It is written whole
or not at all.

The defaults are those of the code that the clusters paper's authors released: the pooler's output and up to 512 tokens.
Its English texts are tweets, which it cleans first: --tweets english.

Needs PyTorch, transformers and safetensors (pip install torch transformers safetensors), and the network once, to
fetch the model from the hub; --tweets also needs nltk (pip install nltk) and its WordNet.
"""
import argparse
import csv
import json
import os
import random
import re
import sys

DEFAULT_MODEL = "bert-base-multilingual-cased"
DEFAULT_CLASSES = ["negative=0", "positive=1"]

# What the released code takes for an emoji in a tweet in lower case, in the order in which they are replaced.
EMOJIS = {":)": "smile", ":-)": "smile", ";d": "wink", ":(": "sad", ":-(": "sad", ":-<": "sad", ":-@": "shocked",
          ":@": "shocked", ":-$": "confused", ":\\": "annoyed", ":#": "mute", ":^)": "smile", ":-&": "confused",
          "$_$": "greedy", "@@": "eyeroll", ":-!": "confused", ":-0": "yell", "<(-_-)>": "robot", "d[-_-]b": "dj",
          ":'-)": "sadsmile", ";)": "wink", ";-)": "wink", "=^.^=": "cat"}


class Problem(Exception):
    """One line that says what is wrong and where."""


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="make_embeddings.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="LANGUAGE=FILE",
                        help="texts of a language: .csv or .tsv with a header")
    parser.add_argument("--out", required=True, help="a new .safetensors file")
    parser.add_argument("--text-column", default="text", help="name of the texts' column (%(default)s)")
    parser.add_argument("--label-column", default="label", help="name of the labels' column (%(default)s)")
    parser.add_argument("--class", action="append", dest="classes", metavar="NAME=VALUE,...",
                        help="a class and which labels in the files are of it, its name aside; once for each class, "
                        "in order (--class %s)" % " --class ".join(DEFAULT_CLASSES))
    parser.add_argument("--skip-other-labels", action="store_true", help="leave out texts with any other label")
    parser.add_argument("--max-texts", type=int, metavar="N", help="at most so many texts a language, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of that draw (%(default)s)")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="on the hub, or a folder (%(default)s)")
    parser.add_argument("--tweets", action="append", default=[], metavar="LANGUAGE",
                        help="its texts are English tweets, to be cleaned as the released code does; once for each")
    parser.add_argument("--pooling", choices=["pooler", "cls", "mean"], default="pooler",
                        help="the pooler's output, the first token's, or the mean over all tokens (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=512, metavar="N",
                        help="texts are cut to so many (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="texts at a time (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ... (%(default)s)")
    arguments = parser.parse_args(words)
    for name in ("max_texts", "max_tokens", "batch_size"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise Problem(f"--{name.replace('_', '-')} must be at least 1, found {value}")
    if not arguments.out.endswith(".safetensors"):
        raise Problem(f"--out must end in .safetensors, found '{arguments.out}'")
    check_new(arguments.out)
    return arguments


def check_new(path):
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise Problem(f"{path}: there is no folder '{folder}'")
    if os.path.lexists(path):
        raise Problem(f"{path}: exists already; give a new file")


def parse_files(words):
    """{language: path}, in order."""
    files = {}
    for word in words:
        language, equals, path = word.partition("=")
        if not language or not equals or not path:
            raise Problem(f"'{word}' must be LANGUAGE=FILE, e.g. french=fr.csv")
        if language in files:
            raise Problem(f"'{language}' is given twice")
        if not path.endswith((".csv", ".tsv")):
            raise Problem(f"{path}: must end in .csv or .tsv")
        if not os.path.isfile(path):
            raise Problem(f"{path}: there is no such file")
        files[language] = path
    return files


def parse_classes(words):
    """Names of the classes, and {label in a file: class}."""
    names, numbers = [], {}
    for number, word in enumerate(words):
        name, _, values = word.partition("=")
        if not name:
            raise Problem(f"--class: '{word}' has no name")
        names.append(name)
        for value in [name] + [value for value in values.split(",") if value]:
            if numbers.setdefault(value, number) != number or names.count(name) > 1:
                raise Problem(f"--class: '{value}' is given twice")
    if len(names) < 2:
        raise Problem("--class: there must be two at least")
    return names, numbers


def read_texts(path, arguments, numbers):
    """[(text, class)] of a file."""
    rows = []
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.endswith(".tsv") else ",")
        try:
            for column in (arguments.text_column, arguments.label_column):
                if column not in (reader.fieldnames or []):
                    found = ", ".join(reader.fieldnames or ["nothing"])
                    raise Problem(f"{path}: its header has no column '{column}', only {found}")
            for row in reader:
                text, label = row[arguments.text_column], (row[arguments.label_column] or "").strip()
                if label in numbers and text and text.strip():
                    rows.append((text, numbers[label]))
                elif label not in numbers and not arguments.skip_other_labels:
                    raise Problem(f"{path}:{reader.line_num}: label '{label}' is of no class; see --class and "
                                  "--skip-other-labels")
        except (csv.Error, UnicodeDecodeError) as error:
            raise Problem(f"{path}:{reader.line_num + 1}: {error}") from error
    if not rows:
        raise Problem(f"{path}: no text with a label of a class")
    if arguments.max_texts is not None and len(rows) > arguments.max_texts:
        rows = random.Random(arguments.seed).sample(rows, arguments.max_texts)
    return rows


def clean_tweet(text, lemmatise):
    """Lower case, links, emojis and names replaced by a word, letters and digits only, no letter more than twice in a
    row; what is left are the lemmas of words of three letters or more."""
    text = re.sub(r"http://[^ ]*|https://[^ ]*| www\.[^ ]*", " URL", text.lower())
    for emoji, meaning in EMOJIS.items():
        text = text.replace(emoji, "EMOJI" + meaning)
    text = re.sub(r"@\S+", " USER", text)
    text = re.sub(r"[^a-zA-Z0-9]", " ", text)
    text = re.sub(r"(.)\1\1+", r"\1\1", text)
    return " ".join(lemmatise(word) for word in text.split() if len(word) > 2 and word.isalpha())


def wordnet_lemmas():
    """A function from a word to its lemma as a noun."""
    try:
        from nltk.stem import WordNetLemmatizer
        lemmatise = WordNetLemmatizer().lemmatize
        lemmatise("words")
    except ImportError as error:
        raise Problem(f"--tweets: {error}; pip install nltk") from error
    except LookupError as error:
        raise Problem("--tweets: WordNet is not there; python3 -m nltk.downloader wordnet") from error
    return lemmatise


def cleaned(rows, lemmatise):
    """The rows as cleaned tweets, without those of which nothing is left."""
    rows = [(clean_tweet(text, lemmatise), kind) for text, kind in rows]
    return [(text, kind) for text, kind in rows if text]


def bert_encoder(arguments):
    """A function from texts to a tensor [texts, d] float32."""
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise Problem(f"{error}; pip install torch transformers safetensors") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(arguments.model)
        model = AutoModel.from_pretrained(arguments.model).to(arguments.device).eval()
    except (OSError, ValueError) as error:
        raise Problem(f"--model {arguments.model}: {str(error).splitlines()[0]}") from error

    def encode(texts):
        tokens = tokenizer(texts, padding=True, truncation=True, max_length=arguments.max_tokens, return_tensors="pt")
        tokens = tokens.to(arguments.device)
        with torch.inference_mode():
            output = model(**tokens)
        states = output.last_hidden_state
        if arguments.pooling == "pooler":
            if getattr(output, "pooler_output", None) is None:
                raise Problem(f"--model {arguments.model}: it has no pooler; choose --pooling cls or mean")
            return output.pooler_output.float().cpu()
        if arguments.pooling == "cls":
            return states[:, 0].float().cpu()
        mask = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)
        return ((states * mask).sum(1) / mask.sum(1)).float().cpu()

    return encode


def progress(steps):
    """A bar where tqdm is there, which transformers brings."""
    try:
        from tqdm import tqdm
    except ImportError:
        return steps
    return tqdm(steps, desc="embeddings", unit="batch")


def embed(texts, encode, batch_size):
    """[texts, d]. Texts of like length go together, the longest first, so that a lack of memory shows at once."""
    import torch

    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    embeddings = None
    for begin in progress(range(0, len(order), batch_size)):
        rows = order[begin:begin + batch_size]
        found = encode([texts[i] for i in rows])
        if embeddings is None:
            embeddings = torch.empty(len(texts), found.shape[1])
        embeddings[torch.tensor(rows)] = found
    if not torch.isfinite(embeddings).all():
        raise Problem("the model gave a number that is not finite")
    return embeddings


def write_embeddings(path, embeddings, label, language, classes, languages, more=None):
    """Writes the file under another name first, so that it is there whole or not at all."""
    import torch

    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise Problem(f"{error}; pip install safetensors") from error
    tensors = {"embeddings": embeddings.contiguous(), "label": torch.as_tensor(label, dtype=torch.int64),
               "language": torch.as_tensor(language, dtype=torch.int64)}
    metadata = {"classes": json.dumps(classes), "languages": json.dumps(languages), **(more or {})}
    part = f"{path}.{os.getpid()}.part"
    try:
        save_file(tensors, part, metadata)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        if os.path.lexists(part):
            os.unlink(part)


def main(words, make_encoder=bert_encoder, make_lemmas=wordnet_lemmas):
    arguments = parse_arguments(words)
    files = parse_files(arguments.files)
    classes, numbers = parse_classes(arguments.classes or DEFAULT_CLASSES)
    for language in arguments.tweets:
        if language not in files:
            raise Problem(f"--tweets: '{language}' is none of the languages {', '.join(files)}")
    lemmatise = make_lemmas() if arguments.tweets else None
    texts, label, language = [], [], []
    for number, (name, path) in enumerate(files.items()):
        rows = read_texts(path, arguments, numbers)
        for text, kind in cleaned(rows, lemmatise) if name in arguments.tweets else rows:
            texts.append(text)
            label.append(kind)
            language.append(number)
    embeddings = embed(texts, make_encoder(arguments), arguments.batch_size)
    write_embeddings(arguments.out, embeddings, label, language, classes, list(files),
                     {"model": arguments.model, "pooling": arguments.pooling, "max_tokens": str(arguments.max_tokens),
                      "tweets": ", ".join(arguments.tweets)})
    print(f"{arguments.out}: {len(texts)} texts of {len(files)} languages, {embeddings.shape[1]} numbers each",
          file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(f"make_embeddings.py: {problem}")
