# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/python/make_embeddings.py with an encoder that stands in for BERT: embeddings_test.py TOOLS [TEST]"""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, sys.argv.pop(1))
import make_embeddings  # noqa: E402
import make_synthetic_embeddings  # noqa: E402

ENGLISH = "id,text,label\n1,\"good, very\",4\n2,bad,0\n3,,4\n4,fine,positive\n"
FRENCH = "text\tlabel\nmauvais\t0\nbon\t1\n"


def run(words, encoder=None, lemmas=make_embeddings.wordnet_lemmas):
    with contextlib.redirect_stderr(io.StringIO()):
        make_embeddings.main(words, encoder or make_embeddings.bert_encoder, lemmas)


class FolderCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.english = self.write("en.csv", ENGLISH)
        self.french = self.write("fr.tsv", FRENCH)
        self.out = os.path.join(self.folder, "out.safetensors")

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path


class WrongUse(FolderCase):
    def refused(self, text, *words):
        with self.assertRaises(make_embeddings.Problem) as caught:
            run(["--out", self.out, *words], lambda arguments: self.fail("the model was loaded"))
        self.assertIn(text, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertFalse(os.path.exists(self.out))

    def test_files(self):
        english = "english=" + self.english
        self.refused("must be LANGUAGE=FILE", self.english)
        self.refused("'english' is given twice", english, english)
        self.refused("no such file", "english=" + os.path.join(self.folder, "no.csv"))
        self.refused("must end in .csv or .tsv", "english=" + self.write("en.txt", ENGLISH))
        self.refused("has no column 'review', only id, text, label", english, "--text-column", "review")
        self.refused("en.csv:2: label '4' is of no class", english)
        self.refused("no text with a label", "english=" + self.write("no.csv", "text,label\n"))
        self.refused("in.csv:", "english=" + self.write("in.csv", "text,label\na\0b,1\n" + "x" * 200000 + ",1\n"))

    def test_options(self):
        french = "french=" + self.french
        self.refused("--batch-size must be at least 1", french, "--batch-size", "0")
        self.refused("--max-texts must be at least 1", french, "--max-texts", "0")
        self.refused("'english' is none of the languages french", french, "--tweets", "english")
        self.refused("there must be two at least", french, "--class", "a=0")
        self.refused("'0' is given twice", french, "--class", "a=0", "--class", "b=0")
        self.refused("must end in .safetensors", french, "--out", self.out + ".pt")
        self.refused("there is no folder", french, "--out", "/nowhere/at/all.safetensors")
        taken = self.write("taken.safetensors", "")
        self.refused("exists already", french, "--out", taken)

    def test_the_synthetic_embeddings(self):
        for words in (["--count", "0"], ["--width", "5"]):
            with self.assertRaises(make_embeddings.Problem):
                make_synthetic_embeddings.main(["--out", self.out, *words])


class Written(FolderCase):
    def read(self):
        from safetensors import safe_open

        with safe_open(self.out, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()

    def test_what_the_encoder_gives_in_the_order_of_the_files(self):
        import torch

        sizes = []

        def make_encoder(arguments):
            def encode(texts):
                sizes.append(len(texts))
                return torch.tensor([[len(text), ord(text[0])] for text in texts], dtype=torch.float32)
            return encode

        run(["--out", self.out, "--batch-size", "2", "--class", "negative=0", "--class", "positive=1,4",
             "english=" + self.english, "french=" + self.french], make_encoder)
        tensors, metadata = self.read()
        texts = ["good, very", "bad", "fine", "mauvais", "bon"]
        self.assertEqual(tensors["embeddings"].tolist(), [[len(text), ord(text[0])] for text in texts])
        self.assertEqual(tensors["label"].tolist(), [1, 0, 1, 0, 1])
        self.assertEqual(tensors["language"].tolist(), [0, 0, 0, 1, 1])
        self.assertEqual(tensors["language"].dtype, torch.int64)
        self.assertEqual(sizes, [2, 2, 1])
        self.assertEqual(json.loads(metadata["classes"]), ["negative", "positive"])
        self.assertEqual(json.loads(metadata["languages"]), ["english", "french"])
        self.assertEqual(metadata["model"], "bert-base-multilingual-cased")

    def test_tweets_are_cleaned(self):
        clean = make_embeddings.clean_tweet
        self.assertEqual(clean("Soooo HAPPY :-) @bob see https://x.y/z?q=1 or www.a.b", str), "soo happy EMOJIsmile USER "
                         "see URL URL")
        self.assertEqual(clean("it's 4 me, b4 cats!!! :'-) 1234 @@", lambda word: word.removesuffix("s")),
                         "cat EMOJIsadsmile EMOJIeyeroll")
        self.assertEqual(clean("dogs=^.^=bark", lambda word: word.removesuffix("s")), "dogsEMOJIcatbark")

    def test_only_the_tweets_are_cleaned(self):
        import torch

        seen = []

        def make_encoder(arguments):
            def encode(texts):
                seen.extend(texts)
                return torch.zeros(len(texts), 1)
            return encode

        tweets = self.write("tweets.csv", "text,label\nGooood :),1\n@a,0\n")
        run(["--out", self.out, "english=" + tweets, "french=" + self.french, "--tweets", "english"], make_encoder,
            lambda: str)
        self.assertEqual(sorted(seen), ["USER", "bon", "good EMOJIsmile", "mauvais"])
        self.assertEqual(self.read()[1]["tweets"], "english")

    def test_the_pooler_of_up_to_512_tokens_is_the_default(self):
        arguments = make_embeddings.parse_arguments(["--out", self.out, "french=" + self.french])
        self.assertEqual((arguments.pooling, arguments.max_tokens, arguments.tweets), ("pooler", 512, []))

    def test_nothing_remains_where_it_fails(self):
        import torch

        def nan_encoder(arguments):
            return lambda texts: torch.full([len(texts), 3], float("nan"))

        for encoder in (nan_encoder, lambda arguments: lambda texts: 1 / 0):
            with self.assertRaises((make_embeddings.Problem, ZeroDivisionError)):
                run(["--out", self.out, "french=" + self.french], encoder)
            self.assertEqual(sorted(os.listdir(self.folder)), ["en.csv", "fr.tsv"])

    def test_a_draw_by_the_seed(self):
        import torch

        def make_encoder(arguments):
            return lambda texts: torch.tensor([[float(text)] for text in texts])

        many = self.write("many.csv", "text,label\n" + "".join(f"{i},{i % 2}\n" for i in range(100)))
        found = []
        for seed in (1, 1, 2):
            run(["--out", self.out, "--max-texts", "10", "--seed", str(seed), "x=" + many], make_encoder)
            found.append(self.read()[0]["embeddings"].flatten().tolist())
            os.unlink(self.out)
        self.assertEqual(found[0], found[1])
        self.assertNotEqual(found[0], found[2])
        self.assertEqual(len(set(found[0])), 10)

    def test_the_synthetic_embeddings(self):
        make_synthetic_embeddings.main(["--out", self.out, "--count", "90", "--width", "16"])
        tensors, metadata = self.read()
        self.assertEqual(list(tensors["embeddings"].shape), [90, 16])
        self.assertEqual(sorted(set(tensors["language"].tolist())), [0, 1, 2])
        self.assertEqual(sorted(set(tensors["label"].tolist())), [0, 1])
        self.assertTrue(all("synthetic" in name for name in json.loads(metadata["languages"])))


if __name__ == "__main__":
    unittest.main()
